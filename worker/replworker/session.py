"""Session inside its worker: handles requests, runs evals in the interpreter, sends replies.

No sockets or polling here: the loop calls in, and this calls the reply sender, the interpreter and the timers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from replwire.deadlines import Deadlines
from replwire.faults import RequestError
from replwire.limits import RETRY_AFTER_MS, Limits
from replwire.link import (
    HEADER_BYTES,
    AssignBody,
    AssignedBody,
    CancelBody,
    ExitedBody,
    FrameKind,
    Header,
    HeartbeatBody,
    encode,
)
from replwire.ops import Env, Eval, Read, Stdin
from replwire.replies import Reply, SkippedName
from replworker import files, packages
from replworker.evals import EvalRecord, EvalStore
from replworker.grants import GrantResolver
from replworker.info import Inspector
from replworker.interpreter import Interpreter, InterpreterBroken
from replworker.introspection import NameQueries
from replworker.link import BrokerLink
from replworker.memory import MemoryWatch
from replworker.output import BackgroundOutput, Stream
from replworker.reads import ReadHandler
from replworker.reply_sender import ReplySender
from replworker.results import build_error_result, build_result, decode_bundle
from replworker.runtimes import frames
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.sandbox.workspace import DirectoryRefused
from replworker.session_sandbox import SessionSandbox, enter_directory
from replworker.snapshots import SnapshotTransfer, package_directory
from replworker.stdin import StdinBuffer

_RESEND_S = 0.5  # user code may catch the first interrupt inside a library, so a second is sent
_NEED_INPUT_MAX = 10_000  # per eval; more means a broken interpreter

_decode_claim = msgspec.json.Decoder(AssignBody).decode
_decode_cancel = msgspec.json.Decoder(CancelBody).decode
_decode_eval = msgspec.json.Decoder(Eval).decode
_decode_env = msgspec.json.Decoder(Env).decode
_decode_read = msgspec.json.Decoder(Read).decode
_decode_stdin = msgspec.json.Decoder(Stdin).decode


class WorkerSettings(NamedTuple):
    """Settings of a worker from the broker's config."""

    snapshots: str  # folder
    load_paths: tuple[str, ...]
    grants: GrantResolver
    confinement: SessionSandbox | None = None


class _OpRequest(msgspec.Struct):
    id: str
    op: str


class _LoadRequest(msgspec.Struct, rename="kebab"):
    id: str
    op: str
    file: str
    silent: bool = False


_decode_op = msgspec.json.Decoder(_OpRequest).decode
_decode_load = msgspec.json.Decoder(_LoadRequest).decode


def _without_duplicate_keys(body: bytes) -> bytes:
    """Return a request without duplicate keys.

    The broker has checked only the last value of a duplicate key; a struct decoder checks every one.
    """
    return msgspec.json.encode(msgspec.json.decode(body))


class WorkerSession:
    """A worker's session, from before its assignment to the interpreter's exit."""

    def __init__(
        self,
        link: BrokerLink,
        child: InterpreterProcess,
        timers: Deadlines,
        limits: Limits,
        settings: WorkerSettings,
        memory: MemoryWatch,
    ) -> None:
        self._child = child
        self._memory = memory
        self._timers = timers
        self._settings = settings
        self._voice = ReplySender(link)
        self._interpreter = Interpreter(child, lambda: self._voice.send_control(FrameKind.READY))
        self._claim: AssignBody | None = None
        self._need_input_count = 0
        self._lost_cause: str | None = None
        self._notice: str | None = None  # why there is no working directory although one was requested
        self._names = NameQueries(self._voice, self._interpreter, timers, lambda: self.jobs)
        self._snapshots = SnapshotTransfer(
            self._voice, self._interpreter, settings.snapshots, package_directory("dill")
        )
        self._inspector = Inspector(self._voice, self._interpreter, child, self._names, timers, memory)
        self.handle_interpreter_frame = self._interpreter.handle_frame
        self._eval_handlers: dict[str, Callable[[Header, bytes], None]] = {
            "eval": self._handle_eval,
            "load-file": self._handle_load_file,
            "reload-file": self._handle_load_file,
            "env": self._handle_packages,
            "clone": self._handle_clone,
            "clone-session": self._handle_clone,
        }
        self._query_handlers: dict[str, Callable[[int, bytes], None]] = {
            "read": lambda route, body: self._reads.read(route, _decode_read(body)),
            "stdin": self._handle_stdin,
            "info": lambda route, body: self._inspector.handle_info(
                route, body, self.jobs, self.background, self.input
            ),
            "stack": self._inspector.handle_stack,
            "complete": self._names.handle_complete,
            "lookup": self._names.handle_lookup,
            "ls-bindings": self._names.handle_list,
            "clear-bindings": self._names.handle_clear,
        }
        self._apply_limits(limits)

    def _apply_limits(self, limits: Limits) -> None:
        self._limits = limits
        self.jobs = EvalStore(limits)
        self.background = BackgroundOutput(limits.background_bytes)
        self.input = StdinBuffer(self._child, limits.max_stdin_bytes)
        voice = self._voice
        self._reads = ReadHandler(self.jobs, self.background, self._timers, limits, voice.send_reply)

    # --- to the broker ---

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the resource use."""
        usage = HeartbeatBody(self._child.cpu_seconds() or 0.0, self._memory.used)
        self._voice.send_control(FrameKind.HEARTBEAT, encode(usage))

    def send_exited(self, cause: str) -> None:
        """Report the interpreter's exit; the broker answers for the running eval."""
        if self.jobs.running is not None:
            self._flush_decoders(self.jobs.running)
        self._voice.send_control(FrameKind.INTERPRETER_EXITED, encode(ExitedBody(cause)))

    # --- from the broker ---

    def handle_frame(self, header: Header, frame: bytes) -> None:
        """Handle one frame of the broker.

        Raises:
            InterpreterBroken: the interpreter can no longer respond
        """
        if header.kind == FrameKind.REQUEST:
            self._voice.epoch = header.epoch  # a transferred session may have a higher one
            try:
                self._handle_request(header, frame[HEADER_BYTES:])
            except msgspec.ValidationError:
                self._handle_request(header, _without_duplicate_keys(frame[HEADER_BYTES:]))
        elif header.kind == FrameKind.CANCEL:
            self._handle_cancel(header.route, _decode_cancel(frame[HEADER_BYTES:]))
        elif header.kind == FrameKind.ASSIGN:
            self._voice.epoch = header.epoch
            self._on_assign(_decode_claim(frame[HEADER_BYTES:]))

    def _on_assign(self, claim: AssignBody) -> None:
        self._claim, self._lost_cause = claim, claim.lost
        self._apply_limits(claim.limits)
        limits = {
            "value-bytes": claim.limits.max_value_bytes,
            "trace-frames": claim.limits.max_trace_frames,
            "trace-bytes": claim.limits.max_trace_bytes,
            "image-bytes": claim.limits.max_image_bytes,
            "images": claim.limits.max_images,
        }
        env = dict(pair.split("=", 1) for pair in claim.env)
        try:
            folder, why = enter_directory(self._settings.confinement, self._settings.grants, claim, env)
        except DirectoryRefused as refused:
            self._send_assigned(str(refused), [])
            return
        self._notice = None if why is None else f"the session has no working directory: {why}"
        self._interpreter.request(
            frames.ClaimFrame(self._interpreter.next_number(), folder, env, limits), self._on_claim_reply
        )

    def _on_claim_reply(self, event: frames.FrameEvent) -> None:
        assert isinstance(event, frames.ClaimedFrame)
        assert self._claim is not None
        if event.error is None and self._claim.restore is not None:
            self._snapshots.restore(self._claim.restore, self._send_assigned)
        else:
            self._send_assigned(event.error, [])

    def _send_assigned(self, error: str | None, left_behind: list[SkippedName]) -> None:
        ready = self._interpreter.ready
        claimed = AssignedBody(error, ready.executable if ready else None, left_behind, self._notice)
        self._voice.send_control(FrameKind.ASSIGNED, encode(claimed))

    def _handle_request(self, header: Header, body: bytes) -> None:
        asked = _decode_op(body)
        run = self._eval_handlers.get(asked.op)
        if run is not None:
            run(header, body)
        elif (answer := self._query_handlers.get(asked.op)) is not None:
            answer(header.route, body)
        else:
            self._voice.send_error(header.route, asked.id, "not-supported", f"{asked.op}: not supported by a worker")

    # --- queued operations ---

    def _begin(self, header: Header, request_id: str, op: str) -> EvalRecord:
        self.drain()  # earlier background output is not this eval's
        self._need_input_count = 0
        return self.jobs.begin(header.route, header.eval, request_id, self._interpreter.next_number(), op)

    def _run(self, job: EvalRecord, ask: frames.EvalFrame) -> None:
        assert self._claim is not None
        ask.named = not self._claim.ephemeral
        self._interpreter.request(ask, lambda event: self._on_eval_frame(job, event))

    def _label(self, header: Header) -> str:
        assert self._claim is not None
        return f"<{self._claim.name or 'eval'}:{header.eval}>"

    def _handle_eval(self, header: Header, body: bytes) -> None:
        request = _decode_eval(body)
        job = self._begin(header, request.id, request.op)
        job.module = request.module
        self._run(
            job,
            frames.EvalFrame(
                job.request_number,
                request.code or "",
                self._label(header),
                request.silent,
                request.allow_stdin,
                request.store_history,
                request.mime,
                module=request.module,
            ),
        )

    def _handle_load_file(self, header: Header, body: bytes) -> None:
        request = _decode_load(body)
        job = self._begin(header, request.id, request.op)
        assert self._claim is not None
        try:
            cwd = self._child.cwd() or self._claim.cwd
            grant = self._settings.grants.resolve_for_files(self._claim.asker)
            text = files.read_file(request.file, cwd, self._settings.load_paths, self._limits.max_file_bytes, grant)
        except RequestError as refusal:
            self._end_without_running(job, refusal)
            return
        reload = request.op == "reload-file"
        self._run(
            job,
            frames.EvalFrame(
                job.request_number, text.code, text.path, request.silent, False, False, file=text.path, reload=reload
            ),
        )

    def _handle_packages(self, header: Header, body: bytes) -> None:
        request = _decode_env(body)
        job = self._begin(header, request.id, request.op)
        self._run(
            job,
            frames.EvalFrame(
                job.request_number, packages.build_code(request), self._label(header), False, False, False
            ),
        )

    def _handle_clone(self, header: Header, body: bytes) -> None:
        job = self._begin(header, _decode_op(body).id, "clone")

        def ended(error: str | None) -> None:
            self._timers.cancel(job.resend_timer)
            if error is None:
                self.jobs.drop()
            else:
                self._end_without_running(job, RequestError("clone-failed", f"the session cannot be copied: {error}"))

        number = self._snapshots.dump(header.route, self._limits.max_snapshot_bytes, ended)
        job.request_number = number or job.request_number

    def _end_without_running(self, job: EvalRecord, refusal: RequestError) -> None:
        """Reply to an eval that failed before any user code ran."""
        assert self._claim is not None
        ending = build_error_result(job, refusal, self._claim, self._voice.epoch)
        self._end(job, ending.done, None, ending.outcome)

    def _on_eval_frame(self, job: EvalRecord, event: frames.FrameEvent) -> None:
        assert self._claim is not None
        if isinstance(event, frames.NeedInputFrame):
            self._need_input_count += 1
            if self._need_input_count > _NEED_INPUT_MAX:
                raise ValueError("requests input endlessly")
            self.drain()  # a prompt on stderr is not ordered with the frame
            need = Reply(id=job.request_id, status=["need-input"], eval_id=job.eval_id)
            need.session, need.name = self._claim.session, self._claim.name
            job.need_input = need
            self._voice.send_reply(job.route, need)
            self._reads.on_need_input(job)
            return
        assert isinstance(event, frames.ResultFrame)
        self.drain()
        self._flush_decoders(job)
        self._timers.cancel(job.resend_timer)
        job.images = [decode_bundle(image) for image in event.images]
        for image in job.images:
            self._voice.send_reply(job.route, Reply(id=job.request_id, mime=image))
        ending = build_result(
            job,
            event,
            self._claim,
            self._voice.epoch,
            self._lost_cause,
            self.background.unread,
            job.module or self._interpreter.namespace,
        )
        self._lost_cause = None
        self._end(job, ending.done, ending.value, ending.outcome)

    def _end(self, job: EvalRecord, done: Reply, value: Reply | None, outcome: int) -> None:
        job.value, job.done = value, done
        self._voice.send_reply(job.route, done, outcome, before=value)
        self._reads.on_eval_end(job)
        self.jobs.end()

    def _handle_cancel(self, route: int, cancel: CancelBody) -> None:
        job = self.jobs.running
        if job is None or job.route != route:
            return
        if self._child.is_stopped():
            raise InterpreterBroken("the interpreter was stopped by a signal (such as SIGSTOP)")
        job.is_cancelled = True
        job.limit_ms, job.time_hint = cancel.limit_ms or job.limit_ms, cancel.hint or job.time_hint
        self._child.send(frames.encode(frames.InterruptFrame(job.request_number)))
        self._child.interrupt()
        if job.resend_timer is None:
            job.resend_timer = self._timers.call_at(time.monotonic() + _RESEND_S, lambda _: self._child.interrupt())

    # --- output ---

    def drain(self) -> None:
        """Read what is in the pipes now and no more: endless output must not block the worker."""
        child = self._child
        for fd in child.readable_pipes():
            if fd == child.background:
                self.read_background(child.unread_bytes(fd))
            else:
                self.read_stream("out" if fd == child.out else "err", child.unread_bytes(fd))

    def read_stream(self, stream: Stream, most: int) -> bool:
        """Read up to `most` bytes of a stream. Return False at its end."""
        fd = self._child.out if stream == "out" else self._child.err
        while most > 0:
            data = self._child.read(fd)
            if not data:
                return data is None
            most -= len(data)
            job = self.jobs.running
            if job is None:
                self.background.add(data)
                continue
            text = job.output.add(stream, data)
            if text:
                self._forward_output(job, stream, text)
        return True

    def read_background(self, most: int) -> bool:
        """Read up to `most` bytes of background output. Return False at its end."""
        while most > 0:
            data = self._child.read(self._child.background)
            if not data:
                return data is None
            most -= len(data)
            self.background.add(data)
        return True

    def _flush_decoders(self, job: EvalRecord) -> None:
        for piece in job.output.finish():
            self._forward_output(job, piece.stream, piece.text)

    def _forward_output(self, job: EvalRecord, stream: Stream, text: str) -> None:
        self._voice.send_output(job.route, job.request_id, stream, text)
        for follower in job.waiters:
            if follower.grep is None and follower.stream in ("both", stream):
                self._voice.send_output(follower.route, follower.request_id, stream, text)

    # --- input ---

    def _handle_stdin(self, route: int, body: bytes) -> None:
        request = _decode_stdin(body)
        assert self._claim is not None
        data = request.input.encode("utf-8", "surrogatepass")
        if not self.input.offer(data):
            self._reject_input(route, request, len(data))
            return
        if self.jobs.running is not None:
            self.jobs.running.need_input = None
        label = [self._claim.name or self._claim.session]
        where = "delivered" if self.jobs.running is not None else "buffered"
        self._voice.send_done(route, request.id, **{where: label})

    def _reject_input(self, route: int, request: Stdin, given: int) -> None:
        most = self._limits.max_stdin_bytes
        if given > most:  # it never fits, so no retry is suggested
            err = f"{given} bytes of input exceed the limit (max-stdin-bytes = {most})"
            hint, retry = f"send at most {most} bytes at a time, after the code has read the previous ones", None
        else:
            err = f"{self.input.unread_bytes()} bytes of input are unread (max-stdin-bytes = {most})"
            hint, retry = None, RETRY_AFTER_MS
        self._voice.send_error(
            route,
            request.id,
            "stdin-buffer-full",
            err,
            limit="max-stdin-bytes",
            limit_value=most,
            hint=hint,
            retry_after_ms=retry,
        )

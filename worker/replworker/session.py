"""The session inside its worker: requests in, evals driven through the interpreter, answers out.

No socket and no poll here: the loop calls in, and this calls the voice, the interpreter and the timers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from replwire.deadlines import Deadlines
from replwire.faults import Refusal
from replwire.limits import RETRY_AFTER_MS, Limits
from replwire.link import HEADER_BYTES, Cancel, Claim, Claimed, Gone, Header, Kind, Usage, encode
from replwire.ops import Env, Eval, Read, Stdin
from replwire.replies import LeftBehind, Reply
from replworker import files, packages
from replworker.answers import compose, cut_short, rich
from replworker.confine.workspace import Refused
from replworker.confinement import Confinement, enter
from replworker.grants import Grants
from replworker.info import Inspector
from replworker.interpreter import Interpreter, InterpreterBroken
from replworker.jobs import Job, Jobs
from replworker.link import Link
from replworker.memory import MemoryWatch
from replworker.names import Names
from replworker.output import Background, Stream
from replworker.reads import Reads
from replworker.runtimes import frames
from replworker.runtimes.child import Child
from replworker.snapshots import Snapshots, folder_of
from replworker.stdin import Input
from replworker.voice import Voice

_RESEND_S = 0.5  # code may catch the first interrupt on its way through a library; one more is sent
_NEED_INPUT_MAX = 10_000  # per eval: more is an interpreter gone wild

_decode_claim = msgspec.json.Decoder(Claim).decode
_decode_cancel = msgspec.json.Decoder(Cancel).decode
_decode_eval = msgspec.json.Decoder(Eval).decode
_decode_env = msgspec.json.Decoder(Env).decode
_decode_read = msgspec.json.Decoder(Read).decode
_decode_stdin = msgspec.json.Decoder(Stdin).decode


class Settings(NamedTuple):
    """What the broker's config says to a worker."""

    snapshots: str  # folder
    load_paths: tuple[str, ...]
    grants: Grants
    confinement: Confinement | None = None


class _Op(msgspec.Struct):
    id: str
    op: str


class _Load(msgspec.Struct, rename="kebab"):
    id: str
    op: str
    file: str
    silent: bool = False


_decode_op = msgspec.json.Decoder(_Op).decode
_decode_load = msgspec.json.Decoder(_Load).decode


def _plain(body: bytes) -> bytes:
    """A request with each of its keys once. Of one that came twice the broker has looked at the last value alone,
    and found it right; a decoder for a struct looks at every one."""
    return msgspec.json.encode(msgspec.json.decode(body))


class Session:
    """One worker's session, from before it is claimed to the interpreter's death."""

    def __init__(
        self, link: Link, child: Child, timers: Deadlines, limits: Limits, settings: Settings, memory: MemoryWatch
    ) -> None:
        self._child = child
        self._memory = memory
        self._timers = timers
        self._settings = settings
        self._voice = Voice(link)
        self._interpreter = Interpreter(child, lambda: self._voice.frame(Kind.READY))
        self._claim: Claim | None = None
        self._needs = 0
        self._lost: str | None = None
        self._notice: str | None = None  # why the session has no folder although one was wished for
        self._names = Names(self._voice, self._interpreter, timers, lambda: self.jobs)
        self._snapshots = Snapshots(self._voice, self._interpreter, settings.snapshots, folder_of("dill"))
        self._inspector = Inspector(self._voice, self._interpreter, child, self._names, timers, memory)
        self.interpreter_said = self._interpreter.said
        self._runs: dict[str, Callable[[Header, bytes], None]] = {
            "eval": self._eval,
            "load-file": self._load_file,
            "reload-file": self._load_file,
            "env": self._packages,
            "clone": self._clone,
            "clone-session": self._clone,
        }
        self._asks: dict[str, Callable[[int, bytes], None]] = {
            "read": lambda route, body: self._reads.read(route, _decode_read(body)),
            "stdin": self._stdin,
            "info": lambda route, body: self._inspector.info(route, body, self.jobs, self.background, self.input),
            "stack": self._inspector.stack,
            "complete": self._names.complete,
            "lookup": self._names.lookup,
            "ls-bindings": self._names.bindings,
            "clear-bindings": self._names.clear,
        }
        self._adopt(limits)

    def _adopt(self, limits: Limits) -> None:
        self._limits = limits
        self.jobs = Jobs(limits)
        self.background = Background(limits.background_bytes)
        self.input = Input(self._child, limits.max_stdin_bytes)
        voice = self._voice
        self._reads = Reads(self.jobs, self.background, self._timers, limits, voice.say)

    # --- to the broker ---

    def beat(self) -> None:
        """Tell the broker that this worker lives."""
        usage = Usage(self._child.cpu_seconds() or 0.0, self._memory.used)
        self._voice.frame(Kind.BEAT, encode(usage))

    def gone(self, cause: str) -> None:
        """The interpreter is dead; the broker answers for whatever ran."""
        if self.jobs.running is not None:
            self._flush_decoders(self.jobs.running)
        self._voice.frame(Kind.GONE, encode(Gone(cause)))

    # --- from the broker ---

    def hear(self, header: Header, frame: bytes) -> None:
        """One frame of the broker. Raises InterpreterBroken where the interpreter turns out to be past answering."""
        if header.kind == Kind.ASK:
            self._voice.epoch = header.epoch  # a session that got another owner may have a higher one
            try:
                self._ask(header, frame[HEADER_BYTES:])
            except msgspec.ValidationError:
                self._ask(header, _plain(frame[HEADER_BYTES:]))
        elif header.kind == Kind.CANCEL:
            self._cancel(header.route, _decode_cancel(frame[HEADER_BYTES:]))
        elif header.kind == Kind.CLAIM:
            self._voice.epoch = header.epoch
            self._claimed_by(_decode_claim(frame[HEADER_BYTES:]))

    def _claimed_by(self, claim: Claim) -> None:
        self._claim, self._lost = claim, claim.lost
        self._adopt(claim.limits)
        limits = {
            "value-bytes": claim.limits.max_value_bytes,
            "trace-frames": claim.limits.max_trace_frames,
            "trace-bytes": claim.limits.max_trace_bytes,
            "image-bytes": claim.limits.max_image_bytes,
            "images": claim.limits.max_images,
        }
        env = dict(pair.split("=", 1) for pair in claim.env)
        try:
            folder, why = enter(self._settings.confinement, self._settings.grants, claim, env)
        except Refused as refused:
            self._welcome(str(refused), [])
            return
        self._notice = None if why is None else f"the session has no folder: {why}"
        self._interpreter.ask(frames.Claim(self._interpreter.next(), folder, env, limits), self._on_claimed)

    def _on_claimed(self, event: frames.Event) -> None:
        assert isinstance(event, frames.Claimed)
        assert self._claim is not None
        if event.error is None and self._claim.restore is not None:
            self._snapshots.restore(self._claim.restore, self._welcome)
        else:
            self._welcome(event.error, [])

    def _welcome(self, error: str | None, left_behind: list[LeftBehind]) -> None:
        ready = self._interpreter.ready
        claimed = Claimed(error, ready.executable if ready else None, left_behind, self._notice)
        self._voice.frame(Kind.CLAIMED, encode(claimed))

    def _ask(self, header: Header, body: bytes) -> None:
        asked = _decode_op(body)
        run = self._runs.get(asked.op)
        if run is not None:
            run(header, body)
        elif (answer := self._asks.get(asked.op)) is not None:
            answer(header.route, body)
        else:
            self._voice.refuse(header.route, asked.id, "not-supported", f"{asked.op}: not here")

    # --- what takes its turn ---

    def _begin(self, header: Header, request_id: str, op: str) -> Job:
        self.drain()  # what the session printed since its last eval is not this one's
        self._needs = 0
        return self.jobs.begin(header.route, header.eval, request_id, self._interpreter.next(), op)

    def _run(self, job: Job, ask: frames.Eval) -> None:
        assert self._claim is not None
        ask.named = not self._claim.ephemeral
        self._interpreter.ask(ask, lambda event: self._on_eval(job, event))

    def _label(self, header: Header) -> str:
        assert self._claim is not None
        return f"<{self._claim.name or 'eval'}:{header.eval}>"

    def _eval(self, header: Header, body: bytes) -> None:
        request = _decode_eval(body)
        job = self._begin(header, request.id, request.op)
        job.module = request.module
        self._run(
            job,
            frames.Eval(
                job.asked,
                request.code or "",
                self._label(header),
                request.silent,
                request.allow_stdin,
                request.store_history,
                request.mime,
                module=request.module,
            ),
        )

    def _load_file(self, header: Header, body: bytes) -> None:
        request = _decode_load(body)
        job = self._begin(header, request.id, request.op)
        assert self._claim is not None
        try:
            cwd = self._child.folder() or self._claim.cwd
            grant = self._settings.grants.for_files(self._claim.asker)
            text = files.read(request.file, cwd, self._settings.load_paths, self._limits.max_file_bytes, grant)
        except Refusal as refusal:
            self._end_unrun(job, refusal)
            return
        reload = request.op == "reload-file"
        self._run(
            job,
            frames.Eval(job.asked, text.code, text.path, request.silent, False, False, file=text.path, reload=reload),
        )

    def _packages(self, header: Header, body: bytes) -> None:
        request = _decode_env(body)
        job = self._begin(header, request.id, request.op)
        self._run(job, frames.Eval(job.asked, packages.code(request), self._label(header), False, False, False))

    def _clone(self, header: Header, body: bytes) -> None:
        job = self._begin(header, _decode_op(body).id, "clone")

        def ended(error: str | None) -> None:
            self._timers.cancel(job.resend)
            if error is None:
                self.jobs.drop()
            else:
                self._end_unrun(job, Refusal("clone-failed", f"the session cannot be copied: {error}"))

        number = self._snapshots.dump(header.route, self._limits.max_snapshot_bytes, ended)
        job.asked = number or job.asked

    def _end_unrun(self, job: Job, refusal: Refusal) -> None:
        """The answer of what came to nothing before any code of the user's ran."""
        assert self._claim is not None
        ending = cut_short(job, refusal, self._claim, self._voice.epoch)
        self._end(job, ending.done, None, ending.outcome)

    def _on_eval(self, job: Job, event: frames.Event) -> None:
        assert self._claim is not None
        if isinstance(event, frames.NeedInput):
            self._needs += 1
            if self._needs > _NEED_INPUT_MAX:
                raise ValueError("asks for input without end")
            self.drain()  # a prompt on stderr has no order with the frame that says it waits
            need = Reply(id=job.request_id, status=["need-input"], eval_id=job.eval_id)
            need.session, need.name = self._claim.session, self._claim.name
            job.need = need
            self._voice.say(job.route, need)
            self._reads.needs_input(job)
            return
        assert isinstance(event, frames.Result)
        self.drain()
        self._flush_decoders(job)
        self._timers.cancel(job.resend)
        job.images = [rich(image) for image in event.images]
        for image in job.images:
            self._voice.say(job.route, Reply(id=job.request_id, mime=image))
        ending = compose(
            job,
            event,
            self._claim,
            self._voice.epoch,
            self._lost,
            self.background.unread,
            job.module or self._interpreter.namespace,
        )
        self._lost = None
        self._end(job, ending.done, ending.value, ending.outcome)

    def _end(self, job: Job, done: Reply, value: Reply | None, outcome: int) -> None:
        job.value, job.done = value, done
        self._voice.say(job.route, done, outcome, before=value)
        self._reads.ended(job)
        self.jobs.end()

    def _cancel(self, route: int, cancel: Cancel) -> None:
        job = self.jobs.running
        if job is None or job.route != route:
            return
        if self._child.stopped():
            raise InterpreterBroken("the interpreter was stopped by a signal (SIGSTOP or its like)")
        job.cancelled = True
        job.limit_ms, job.time_hint = cancel.limit_ms or job.limit_ms, cancel.hint or job.time_hint
        self._child.send(frames.encode(frames.Interrupt(job.asked)))
        self._child.interrupt()
        if job.resend is None:
            job.resend = self._timers.at(time.monotonic() + _RESEND_S, lambda _: self._child.interrupt())

    # --- output ---

    def drain(self) -> None:
        """Take what waits in the pipes now, and no more: a child that prints without end must not hold us."""
        child = self._child
        for fd in child.filled():
            if fd == child.late:
                self.late(child.waiting(fd))
            else:
                self.printed("out" if fd == child.out else "err", child.waiting(fd))

    def printed(self, stream: Stream, most: int) -> bool:
        """Read up to `most` bytes of a stream. False at its end."""
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
                self._live(job, stream, text)
        return True

    def late(self, most: int) -> bool:
        """The same for what threads of earlier evals print."""
        while most > 0:
            data = self._child.read(self._child.late)
            if not data:
                return data is None
            most -= len(data)
            self.background.add(data)
        return True

    def _flush_decoders(self, job: Job) -> None:
        for piece in job.output.finish():
            self._live(job, piece.stream, piece.text)

    def _live(self, job: Job, stream: Stream, text: str) -> None:
        self._voice.out(job.route, job.request_id, stream, text)
        for follower in job.followers:
            if follower.grep is None and follower.stream in ("both", stream):
                self._voice.out(follower.route, follower.request_id, stream, text)

    # --- input ---

    def _stdin(self, route: int, body: bytes) -> None:
        request = _decode_stdin(body)
        assert self._claim is not None
        data = request.input.encode("utf-8", "surrogatepass")
        if not self.input.give(data):
            self._input_refused(route, request, len(data))
            return
        if self.jobs.running is not None:
            self.jobs.running.need = None
        label = [self._claim.name or self._claim.session]
        where = "delivered" if self.jobs.running is not None else "buffered"
        self._voice.done(route, request.id, **{where: label})

    def _input_refused(self, route: int, request: Stdin, given: int) -> None:
        most = self._limits.max_stdin_bytes
        if given > most:  # it never fits: to say when to try again would be a lie
            err = f"{given} bytes of input are more than a session takes at once (max-stdin-bytes = {most})"
            hint, retry = f"send at most {most} bytes at a time, each when the code has read those before", None
        else:
            err = f"{self.input.unread()} bytes of input are unread (max-stdin-bytes = {most})"
            hint, retry = None, RETRY_AFTER_MS
        self._voice.refuse(
            route,
            request.id,
            "stdin-buffer-full",
            err,
            limit="max-stdin-bytes",
            limit_value=most,
            hint=hint,
            retry_after_ms=retry,
        )

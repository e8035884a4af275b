"""Queued operations of a session: each runs in the interpreter and ends with exactly one final reply."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from replwire.deadlines import Deadlines
from replwire.faults import RequestError
from replwire.link import AssignBody, CancelBody, Header, Outcome
from replwire.ops import Env, Eval
from replwire.replies import Reply
from replworker import files
from replworker.checkpoints.session_checkpoints import SessionCheckpoints
from replworker.evals import EvalRecord
from replworker.hints import find_hint
from replworker.interpreter import Interpreter, InterpreterBroken
from replworker.packages.package_runner import PackageRunner
from replworker.reads import ReadHandler
from replworker.reply_sender import ReplySender
from replworker.results import build_error_result, build_package_result, build_result, decode_bundle
from replworker.runtimes import frames
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.saved_snapshots import SavedSnapshots
from replworker.session_settings import WorkerSettings
from replworker.session_streams import SessionStreams
from replworker.snapshots import SnapshotTransfer, failure_of

_RESEND_S = 0.5  # user code may catch the first interrupt inside a library, so a second is sent
_HINT_BYTES = 2000  # end of stderr or traceback that is searched for the reason of a failure
_TEST_RUNNER = str(Path(__file__).parent / "runtimes/python/test_runner.py")
_NEED_INPUT_MAX = 10_000  # per eval; more means a broken interpreter

_decode_eval = msgspec.json.Decoder(Eval).decode
_decode_env = msgspec.json.Decoder(Env).decode


class _LoadRequest(msgspec.Struct, rename="kebab"):
    id: str
    op: str
    file: str
    silent: bool = False


class _CloneRequest(msgspec.Struct):
    id: str


_decode_load = msgspec.json.Decoder(_LoadRequest).decode
_decode_clone = msgspec.json.Decoder(_CloneRequest).decode


class EvalRunner:
    """Runs one operation at a time in the interpreter of an assigned session."""

    def __init__(
        self,
        process: InterpreterProcess,
        interpreter: Interpreter,
        replies: ReplySender,
        streams: SessionStreams,
        reads: ReadHandler,
        snapshots: SnapshotTransfer,
        saved: SavedSnapshots,
        packages: PackageRunner,
        timers: Deadlines,
        settings: WorkerSettings,
        checkpoints: SessionCheckpoints,
    ) -> None:
        self._process = process
        self._interpreter = interpreter
        self._replies = replies
        self._streams = streams
        self._reads = reads
        self._snapshots = snapshots
        self._saved = saved
        self._packages = packages
        self._timers = timers
        self._settings = settings
        self._checkpoints = checkpoints
        self._assignment: AssignBody | None = None
        self._need_input_count = 0
        self._handlers = {
            "eval": self._handle_eval,
            "load-file": self._handle_load_file,
            "reload-file": self._handle_load_file,
            "env": self._handle_packages,
            "checkpoint": checkpoints.requests.handle_checkpoint,
            "branch": checkpoints.requests.handle_branch,
            **dict.fromkeys(("clone", "clone-session"), lambda header, body: self._handle_copy("clone", header, body)),
            "hibernate": lambda header, body: self._handle_copy("hibernate", header, body),
            "save": self._handle_save,
        }

    def assign(self, assignment: AssignBody) -> None:
        """Note the session that the worker now belongs to."""
        self._assignment = assignment

    def handles(self, op: str) -> bool:
        """Return whether an operation is queued rather than answered at once."""
        return op in self._handlers

    def handle_request(self, op: str, header: Header, body: bytes) -> None:
        """Run an operation; its replies follow."""
        self._handlers[op](header, body)

    def handle_cancel(self, route: int, cancel: CancelBody) -> None:
        """Interrupt the eval of a route.

        Raises:
            InterpreterBroken: the interpreter was stopped by a signal, or has ignored an interrupt
        """
        record = self._streams.evals.running
        if record is None or record.route != route:
            return
        if cancel.kill is not None:
            record.limit_ms = cancel.limit_ms or record.limit_ms
            raise InterpreterBroken(cancel.kill)
        if self._process.is_stopped():
            raise InterpreterBroken("the interpreter was stopped by a signal (such as SIGSTOP)")
        record.is_cancelled = True
        record.limit_ms = cancel.limit_ms or record.limit_ms
        record.time_hint = cancel.hint or record.time_hint
        if self._packages.is_installing:
            self._packages.cancel()
            return
        self._process.send(frames.encode(frames.InterruptFrame(record.request_number)))
        self._process.interrupt()
        if record.resend_timer is None:
            when = time.monotonic() + _RESEND_S
            record.resend_timer = self._timers.call_at(when, lambda _: self._process.interrupt())

    def _begin(self, header: Header, request_id: str, op: str) -> EvalRecord:
        self._streams.drain()  # earlier background output is not this eval's
        if self._settings.network is not None:
            self._settings.network.discard_notes()
        self._need_input_count = 0
        number = self._interpreter.next_number()
        return self._streams.evals.begin(header.route, header.eval, request_id, number, op)

    def _run(self, record: EvalRecord, frame: frames.EvalFrame) -> None:
        assert self._assignment is not None
        frame.named = not self._assignment.ephemeral
        self._checkpoints.on_eval_start(record.eval_id)
        self._interpreter.request(frame, lambda event: self._on_eval_frame(record, event))

    def _source_name(self, header: Header) -> str:
        assert self._assignment is not None
        return f"<{self._assignment.name or 'eval'}:{header.eval}>"

    def _handle_eval(self, header: Header, body: bytes) -> None:
        request = _decode_eval(body)
        record = self._begin(header, request.id, request.op)
        record.module = request.module
        frame = frames.EvalFrame(
            record.request_number,
            request.code or "",
            self._source_name(header),
            request.silent,
            request.allow_stdin,
            request.store_history,
            request.mime,
            module=request.module,
        )
        self._run(record, frame)

    def _handle_load_file(self, header: Header, body: bytes) -> None:
        request = _decode_load(body)
        record = self._begin(header, request.id, request.op)
        assert self._assignment is not None
        try:
            cwd = self._process.cwd() or self._assignment.cwd
            grant = self._settings.grants.resolve_for_files(self._assignment.owner)
            max_bytes = self._streams.limits.max_file_bytes
            text = files.read_file(request.file, cwd, self._settings.load_paths, max_bytes, grant)
        except RequestError as error:
            self._end_without_running(record, error)
            return
        number, reload = record.request_number, request.op == "reload-file"
        frame = frames.EvalFrame(
            number, text.code, text.path, request.silent, False, False, file=text.path, reload=reload
        )
        self._run(record, frame)

    def _handle_packages(self, header: Header, body: bytes) -> None:
        request = _decode_env(body)
        record = self._begin(header, request.id, request.op)
        if request.action == "test":
            code = (
                f"__import__('subprocess').call([__import__('sys').executable, *{[_TEST_RUNNER, *request.packages]!r}])"
            )
            name = self._source_name(header)
            self._run(record, frames.EvalFrame(record.request_number, code, name, False, False, False))
            return
        record.request_number = self._packages.start(
            request,
            self._streams.limits,
            lambda stream, text: self._streams.add_output(stream, text.encode()),
            lambda error: self._on_packages_end(record, error),
        )

    def _on_packages_end(self, record: EvalRecord, error: str | None) -> None:
        if self._streams.evals.running is not record:
            return  # a rollback has ended it
        self._streams.finish_output(record)
        self._timers.cancel(record.resend_timer)
        result = build_package_result(record, error, self._replies.epoch, self._checkpoints.take_report())
        self._end(record, result.done, None, result.outcome)

    def _handle_copy(self, op: str, header: Header, body: bytes) -> None:
        record = self._begin(header, _decode_clone(body).id, op)

        def on_end(error: str | None) -> None:
            self._timers.cancel(record.resend_timer)
            if error is None:
                self._streams.evals.drop()
            else:
                text = f"the session cannot be copied: {error}"
                self._end_without_running(record, RequestError(failure_of(op), text))

        number = self._snapshots.dump(op, header.route, self._streams.limits.max_snapshot_bytes, on_end)
        record.request_number = number or record.request_number

    def _handle_save(self, header: Header, body: bytes) -> None:
        record = self._begin(header, _decode_clone(body).id, "save")
        assert self._assignment is not None

        def on_end(outcome: Reply | str) -> None:
            self._timers.cancel(record.resend_timer)
            if isinstance(outcome, Reply):
                self._end(record, outcome, None, Outcome.OK)
            else:
                self._end_without_running(record, RequestError("snapshot-failed", outcome))

        number = self._saved.save(record, self._assignment, self._streams.limits, on_end)
        record.request_number = number or record.request_number

    def _on_eval_frame(self, record: EvalRecord, event: frames.FrameEvent) -> None:
        if isinstance(event, frames.NeedInputFrame):
            self._on_need_input(record)
            return
        assert isinstance(event, frames.ResultFrame)
        assert self._assignment is not None
        self._streams.drain()
        self._streams.finish_output(record)
        self._timers.cancel(record.resend_timer)
        record.images = [decode_bundle(image) for image in event.images]
        result = build_result(
            record,
            event,
            self._assignment,
            self._replies.epoch,
            self._checkpoints.take_report(),
            self._streams.background.unread,
            record.module or self._interpreter.namespace,
            self._find_hint(record, event),
        )
        self._end(record, result.done, result.value, result.outcome)

    def _find_hint(self, record: EvalRecord, event: frames.ResultFrame) -> str | None:
        """Return what the sandbox has to do with a failure; bash reports one on stderr, node the cause in the trace."""
        sandbox = self._settings.sandbox
        if sandbox is None:
            return None
        text = "" if event.ex is None else f"{event.ex.type}: {event.ex.message}"
        if self._interpreter.namespace == "globalThis":
            text += (event.traceback or "")[-_HINT_BYTES:]
        elif self._interpreter.namespace == "shell" and event.value != "0":
            text += record.output.end("err", _HINT_BYTES)
        return find_hint(text, sandbox.policy, sandbox.workspace) if text else None

    def _on_need_input(self, record: EvalRecord) -> None:
        assert self._assignment is not None
        self._need_input_count += 1
        if self._need_input_count > _NEED_INPUT_MAX:
            raise ValueError("requests input endlessly")
        self._streams.drain()  # a prompt on stderr is not ordered with the frame
        reply = Reply(id=record.request_id, status=["need-input"], eval_id=record.eval_id)
        reply.session, reply.name = self._assignment.session, self._assignment.name
        record.need_input = reply
        self._replies.send_reply(record.route, reply)
        self._reads.on_need_input(record)

    def _end_without_running(self, record: EvalRecord, error: RequestError) -> None:
        """Reply to an eval that failed before any user code ran."""
        assert self._assignment is not None
        result = build_error_result(record, error, self._assignment, self._replies.epoch)
        self._end(record, result.done, None, result.outcome)

    def _end(self, record: EvalRecord, done: Reply, value: Reply | None, outcome: Outcome) -> None:
        if self._settings.network is not None:
            done.notice = self._settings.network.take_note()
        record.value, record.done, record.outcome = value, done, outcome
        self._replies.send_result(record)
        self._reads.on_eval_end(record)
        self._streams.evals.end()
        self._checkpoints.on_eval_end()

"""Session inside its worker: handles the broker's frames and sends replies.

No sockets or polling here: the loop calls in, and this calls the reply sender, the interpreter and the timers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from replwire.deadlines import Deadlines
from replwire.limits import Limits
from replwire.link import (
    HEADER_BYTES,
    AdoptBody,
    AssignBody,
    AssignedBody,
    CancelBody,
    ExitedBody,
    FrameKind,
    Header,
    HeartbeatBody,
    ResumeBody,
    encode,
)
from replwire.network import NetworkRules
from replwire.ops import Read
from replwire.replies import SkippedName
from replworker.adoption import SessionAdoption
from replworker.checkpoints.session_checkpoints import SessionCheckpoints
from replworker.descriptor_watch import DescriptorWatch
from replworker.eval_runner import EvalRunner
from replworker.file_transfer import FileTransfer
from replworker.info import Inspector
from replworker.interpreter import Interpreter
from replworker.introspection import NameQueries
from replworker.link import BrokerLink
from replworker.memory import MemoryWatch
from replworker.packages.package_runner import PackageRunner
from replworker.reads import ReadHandler
from replworker.reply_sender import ReplySender
from replworker.runtimes import frames
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.sandbox.workspace import DirectoryRefused
from replworker.saved_snapshots import SavedSnapshots
from replworker.session_network import SessionNetwork
from replworker.session_sandbox import enter_directory
from replworker.session_settings import BranchOrigin, WorkerSettings, interpreter_limits
from replworker.session_streams import SessionStreams
from replworker.snapshots import SnapshotTransfer, package_directory, snapshot_of
from replworker.stdin_requests import answer_stdin

_TIDY_S = 0.05  # after the assignment, when its first eval has probably ended

_decode_rules = msgspec.json.Decoder(NetworkRules).decode
_decode_adopt = msgspec.json.Decoder(AdoptBody).decode
_decode_assign = msgspec.json.Decoder(AssignBody).decode
_decode_cancel = msgspec.json.Decoder(CancelBody).decode
_decode_read = msgspec.json.Decoder(Read).decode
_decode_resume = msgspec.json.Decoder(ResumeBody).decode


class _OpRequest(msgspec.Struct):
    id: str
    op: str


_decode_op = msgspec.json.Decoder(_OpRequest).decode


class WorkerSession:
    """A worker's session, from before its assignment to the interpreter's exit."""

    def __init__(
        self,
        link: BrokerLink,
        process: InterpreterProcess,
        timers: Deadlines,
        limits: Limits,
        settings: WorkerSettings,
        memory: MemoryWatch,
    ) -> None:
        self._process = process
        self.network = settings.network
        self._memory = memory
        self._timers = timers
        self.settings = settings
        self._replies = replies = ReplySender(link)
        self._is_branch = settings.origin is not None
        self._is_woken = not self._is_branch
        self._interpreter = interpreter = Interpreter(
            process,
            self._on_ready,
            self._on_woken,
            settings.origin and settings.origin.ready,
        )
        self._assignment: AssignBody | None = None
        self._notice: str | None = None  # why there is no working directory although one was requested
        self.streams = streams = SessionStreams(process, replies, limits)
        self._snapshots = SnapshotTransfer(
            replies, interpreter, settings.snapshots, settings.hibernated, package_directory("dill")
        )
        self._saved = saved = SavedSnapshots(
            interpreter, replies, timers, settings.snapshots, package_directory("dill")
        )
        self._checkpoints = SessionCheckpoints(process, interpreter, replies, streams, timers, settings)
        self.member = self._checkpoints.member
        self.copies_fd = self._checkpoints.fd
        self.read_copies = self._checkpoints.read_copies
        self.limit_checkpoints = self._checkpoints.limit_memory
        self.watch = DescriptorWatch()
        self._packages = packages = PackageRunner(interpreter, self.watch, settings.packages)
        reads = ReadHandler(streams, timers, replies.send_reply)
        self._runner = EvalRunner(
            process,
            interpreter,
            replies,
            streams,
            reads,
            self._snapshots,
            saved,
            packages,
            timers,
            settings,
            self._checkpoints,
        )
        names = NameQueries(replies, interpreter, timers, streams)
        self._names = names
        inspector = Inspector(replies, interpreter, process, names, timers, memory, streams, settings.sandbox)
        files = FileTransfer(process, replies, timers, settings.sandbox, lambda: streams.limits)
        self._adoption = SessionAdoption(
            link, replies, streams, self._checkpoints, timers, settings.network, self.send_heartbeat
        )
        self.detach = self._adoption.detach
        self.is_assigned = False
        self.handle_interpreter_frame = interpreter.handle_frame
        self._query_handlers: dict[str, Callable[[int, bytes], None]] = {
            "read": lambda route, body: reads.read(route, _decode_read(body)),
            "stdin": lambda route, body: answer_stdin(streams, replies, self._assignment, route, body),
            "info": inspector.handle_info,
            "put-file": files.handle_put,
            "get-file": files.handle_get,
            "stack": inspector.handle_stack,
            "complete": names.handle_complete,
            "lookup": names.handle_lookup,
            "ls-bindings": names.handle_list,
            "clear-bindings": self._handle_clear,
            "ls-checkpoints": self._checkpoints.requests.handle_list,
            "drop-checkpoint": self._checkpoints.requests.handle_drop,
            "rollback": self._checkpoints.requests.handle_rollback,
            "diff": self._checkpoints.handle_diff,
            "get-snapshot": lambda route, body: saved.handle_get(route, body, streams.limits),
        }

    @property
    def is_starting(self) -> bool:
        """True while an interpreter is being started from a checkpoint."""
        return self._checkpoints.is_starting or not self._is_woken

    def _on_ready(self) -> None:
        self._replies.send_control(FrameKind.READY)
        if self.settings.prepares_checkpoint:
            self._checkpoints.prepare()

    def _on_woken(self) -> None:
        if self._is_woken:
            self._checkpoints.on_woken()
        else:
            self._is_woken = True
            self._replies.send_control(FrameKind.READY)

    def recover(self, cause: str) -> bool:
        """Go on from the newest checkpoint after the interpreter's end. Return False if there is none."""
        return self._checkpoints.recover(cause)

    def start_branch(self, checkpoint: int) -> tuple[InterpreterProcess, BranchOrigin]:
        """Start an interpreter from a checkpoint, for another session."""
        return self._checkpoints.start_branch(checkpoint)

    def leave(self) -> None:
        """End this session's part of a sandbox that others go on with."""
        self._packages.cancel()
        self.settings.family.leave(self.member)
        self.watch.close()

    def close(self) -> None:
        """End the copies of the interpreter, drop a saved snapshot, and watch no descriptor any more."""
        self._saved.drop()
        self._checkpoints.close()
        self.watch.close()

    def send_heartbeat(self) -> None:
        """Send a heartbeat with the resource use."""
        is_reporter = self.settings.family.reports_memory(self.member)
        body = HeartbeatBody(self._process.cpu_seconds() or 0.0, self._memory.used if is_reporter else 0)
        self._replies.send_control(FrameKind.HEARTBEAT, encode(body))

    def send_exited(self, cause: str) -> None:
        """Report the interpreter's exit; the broker answers for the running eval."""
        self._packages.cancel()
        self._adoption.exit_cause = cause
        running = self.streams.evals.running
        if running is not None:
            self.streams.finish_output(running)
        self._replies.send_control(FrameKind.INTERPRETER_EXITED, encode(ExitedBody(cause)))

    def handle_frame(self, header: Header, frame: bytes) -> None:
        """Handle one frame of the broker.

        Raises:
            InterpreterBroken: the interpreter can no longer respond
        """
        body = frame[HEADER_BYTES:]
        if header.kind == FrameKind.RESUME:
            self._checkpoints.resume(header.epoch, _decode_resume(body))
            self._packages.show_again()
        elif header.kind in (FrameKind.REQUEST, FrameKind.CANCEL) and self._checkpoints.is_void(header.epoch):
            return
        elif header.kind == FrameKind.REQUEST:
            self._replies.epoch = header.epoch  # a transferred session may have a higher one
            self._adoption.note_request(header)
            try:
                self._handle_request(header, body)
            except msgspec.ValidationError:
                self._handle_request(header, _without_duplicate_keys(body))
        elif header.kind == FrameKind.CANCEL:
            self._runner.handle_cancel(header.route, _decode_cancel(body))
        elif header.kind == FrameKind.ASSIGN:
            self._replies.epoch = header.epoch
            self._on_assign(_decode_assign(body))
        elif header.kind == FrameKind.NETWORK and self.settings.network is not None:
            self.settings.network.set_rules(_decode_rules(body))
        elif header.kind == FrameKind.ADOPT:
            self._adoption.adopt(header.epoch, _decode_adopt(body))

    def redial(self) -> None:
        """Connect to the broker that is there now."""
        assert self._assignment is not None
        self._adoption.redial(self._assignment.session)

    def _on_assign(self, assignment: AssignBody) -> None:
        self._assignment = assignment
        self._runner.assign(assignment)
        self._checkpoints.assign(assignment)
        self.streams.apply_limits(assignment.limits)
        if self._is_branch:
            self._enter_as_branch(assignment)
            return
        env = dict(pair.split("=", 1) for pair in assignment.env)
        try:
            entered = enter_directory(
                self.settings.sandbox,
                self.settings.grants,
                assignment,
                env,
                SessionNetwork.listeners(assignment.network),
            )
        except DirectoryRefused as refused:
            self._send_assigned(str(refused))
            return
        self._checkpoints.enter_directory(entered.directory)
        why = entered.problem
        self._notice = None if why is None else f"the session has no working directory: {why}"
        if assignment.network is not None and self.settings.network is not None:
            owner, rules = assignment.owner.identity, assignment.network
            problem = self.settings.network.open(assignment.session, owner, rules, entered.sockets)
            self._notice = "; ".join(filter(None, (self._notice, problem))) or None
        try:
            packages = self._packages.assign(assignment.session, assignment.packages_of)
        except OSError as error:
            self._send_assigned(f"the session's packages cannot be used: {error.strerror}")
            return
        number, limits = self._interpreter.next_number(), interpreter_limits(assignment.limits)
        frame = frames.AssignFrame(number, entered.directory, env, limits, packages)
        self._checkpoints.note_assignment(frame)
        self._interpreter.request(frame, self._on_assign_reply)

    def _enter_as_branch(self, assignment: AssignBody) -> None:
        """Begin with what the copy has: directory, environment variables and packages of its source."""
        try:
            self._packages.assign(assignment.session, assignment.packages_of, shown=False)
        except OSError as error:
            self._send_assigned(f"the session's packages cannot be used: {error.strerror}")
            return
        number, limits = self._interpreter.next_number(), interpreter_limits(assignment.limits)
        frame = frames.AssignFrame(number, None, {}, limits)
        origin = self.settings.origin
        if origin is not None and origin.assignment is not None:
            frame = msgspec.structs.replace(origin.assignment, n=number, limits=limits)
        self._checkpoints.note_assignment(frame)
        self._interpreter.request(frame, self._on_assign_reply)

    def _on_assign_reply(self, event: frames.FrameEvent) -> None:
        assert isinstance(event, frames.AssignedFrame)
        assert self._assignment is not None
        source = snapshot_of(self._assignment)
        if event.error is None and source is not None:
            self._snapshots.restore(source, self._on_restored)
        else:
            self._send_assigned(event.error)

    def _on_restored(self, event: frames.DumpedFrame) -> None:
        assert self._assignment is not None
        source, ready = snapshot_of(self._assignment), self._interpreter.ready
        assert source is not None
        assert ready is not None
        if self._assignment.hibernated is not None:
            self._checkpoints.note_resumed(self._assignment.hibernated, event.skipped)
        if source.version not in (None, ready.version):
            notice = f"the snapshot was saved by {ready.runtime} {source.version}, this is {ready.version}"
            self._notice = "; ".join(filter(None, (self._notice, notice)))
        self._send_assigned(event.error, event.skipped, event.count)

    def _send_assigned(self, error: str | None, skipped: Sequence[SkippedName] = (), restored: int = 0) -> None:
        ready = self._interpreter.ready
        off = self._checkpoints.begin(self.settings.origin)
        self.is_assigned = error is None
        body = AssignedBody(error, ready.executable if ready else None, list(skipped), self._notice, off, restored)
        self._replies.send_control(FrameKind.ASSIGNED, encode(body))
        if self.settings.sandbox is not None:
            helped = self.settings.sandbox.wrapper
            self._timers.call_at(time.monotonic() + _TIDY_S, lambda _: helped.stop_helper())

    def _handle_request(self, header: Header, body: bytes) -> None:
        request = _decode_op(body)
        if self._runner.handles(request.op):
            self._runner.handle_request(request.op, header, body)
        elif (handler := self._query_handlers.get(request.op)) is not None:
            handler(header.route, body)
        else:
            text = f"{request.op}: not supported by a worker"
            self._replies.send_error(header.route, request.id, "not-supported", text)

    def _handle_clear(self, route: int, body: bytes) -> None:
        self._checkpoints.note_change()
        self._names.handle_clear(route, body)


def _without_duplicate_keys(body: bytes) -> bytes:
    """Return a request without duplicate keys.

    The broker has checked only the last value of a duplicate key; a struct decoder checks every one.
    """
    return msgspec.json.encode(msgspec.json.decode(body))

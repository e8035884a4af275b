"""Checkpoints of the session in this worker: the parts together, and what the rest of the worker tells them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from replwire.deadlines import Deadlines
from replwire.limits import Limits
from replwire.link import AssignBody, FrameKind, HibernatedState, ResumeBody, encode
from replwire.replies import SkippedName
from replworker.checkpoints.automatic import AutomaticCheckpoints
from replworker.checkpoints.file_requests import FileRequests
from replworker.checkpoints.first_checkpoint import FirstCheckpoint
from replworker.checkpoints.recovery import Recovery
from replworker.checkpoints.reports import CheckpointReports
from replworker.checkpoints.requests import CheckpointRequests
from replworker.checkpoints.sentences import why_not_copied
from replworker.checkpoints.session_files import SessionFiles
from replworker.checkpoints.taker import CheckpointKeeper
from replworker.interpreter import Interpreter, InterpreterBroken
from replworker.reply_sender import ReplySender
from replworker.results import StateReport
from replworker.runtimes import frames
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.session_settings import BranchOrigin, WorkerSettings
from replworker.session_streams import SessionStreams


class SessionCheckpoints:
    """Checkpoints of one session. `fd` is readable when `read_copies` has work."""

    def __init__(
        self,
        process: InterpreterProcess,
        interpreter: Interpreter,
        replies: ReplySender,
        streams: SessionStreams,
        timers: Deadlines,
        settings: WorkerSettings,
    ) -> None:
        self._process = process
        self._replies = replies
        self._interpreter = interpreter
        self._memory_limit = None if settings.sandbox is None else settings.sandbox.policy.limits.memory_bytes
        self._files = SessionFiles(interpreter, timers)
        self._taker = CheckpointKeeper(interpreter, timers, Limits(), self._files)
        self._first = FirstCheckpoint(self._taker, interpreter)
        self._recovery = Recovery(
            process, interpreter, replies, streams, timers, self._taker, settings.family, self._files, self._first
        )
        self._automatic = AutomaticCheckpoints(
            self._taker, streams, timers, CheckpointReports(self._taker.tree, replies, timers)
        )
        self.requests = CheckpointRequests(self._taker, self._recovery, self._files, replies)
        self.handle_diff = FileRequests(self._taker, self._files, streams, replies).handle_diff
        self._assignment: AssignBody | None = None
        self._report = StateReport()
        self.fd = self._taker.copies.fd
        self.read_copies = self._taker.read_copies
        self.on_woken = self._recovery.on_start
        self.close = self._taker.copies.close
        self.member = self._recovery.member

    def assign(self, assignment: AssignBody) -> None:
        """Note the session that the worker now belongs to."""
        self._assignment = assignment
        self._taker.limits = assignment.limits
        if assignment.lost_cause is not None:
            self._report = StateReport("lost", assignment.lost_cause)
        self.requests.assign(assignment, self._reason_for_none(assignment))
        self._automatic.is_on = assignment.checkpoints == "auto" and not self.requests.off

    def note_resumed(self, stored: HibernatedState, skipped: Sequence[SkippedName]) -> None:
        """Note that the session has its variables from a file, except for some."""
        since = datetime.fromtimestamp(stored.since, UTC).isoformat(timespec="seconds")
        missing = [f"{each.name}: {each.why}" for each in (*stored.skipped, *skipped)]
        self._report = StateReport("restored", f"the session was hibernated at {since}", not_restored=missing)

    def _reason_for_none(self, assignment: AssignBody) -> str:
        if assignment.checkpoints == "off":
            return "checkpoints are switched off (session.checkpoints)"
        if assignment.ephemeral:
            return "an ephemeral session has none"
        if not self._interpreter.supports("checkpoint"):
            assert self._interpreter.ready is not None
            return why_not_copied(self._interpreter.ready.runtime)
        return "" if self._process.is_held else "a session without a sandbox cannot be copied"

    def enter_directory(self, directory: str | None) -> None:
        """Note the directory that the interpreter has. A branch notes none: it shares that of its source."""
        assert self._assignment is not None
        self._files.assign(directory, wanted=self._assignment.checkpoint_files and not self.requests.off)

    def prepare(self) -> None:
        """Take the first checkpoint before the assignment, if the interpreter can be copied."""
        if self._process.is_held and self._interpreter.supports("checkpoint"):
            self._first.note(self._automatic.take_first(time.monotonic()))

    def note_assignment(self, frame: frames.AssignFrame) -> None:
        """Note what the interpreter is assigned."""
        assert self._assignment is not None
        wanted = self._automatic.is_on and self._assignment.restore is None and not self._files.is_on
        self._first.use(frame, wanted=wanted)

    def begin(self, origin: BranchOrigin | None) -> str:
        """Begin with the state of the assignment. Return why there are no checkpoints, or nothing."""
        if origin is not None and origin.copy is not None and not self.requests.off:
            number = self._taker.inherit(origin.copy.share(), origin.not_restored)
            if origin.assignment is not None:
                self._first.inherit(number)
        self._automatic.take(time.monotonic())
        return self.requests.off

    # --- evals ---

    def on_eval_start(self, eval_id: int) -> None:
        """Note that an eval begins."""
        self._automatic.on_eval_start(time.monotonic())
        self._taker.tree.note_eval(eval_id)

    def on_eval_end(self) -> None:
        """Note that an eval has ended."""
        self._automatic.on_eval_end(time.monotonic())

    def note_change(self) -> None:
        """Note that something other than an eval changes the state."""
        self._taker.tree.changed = True

    def take_report(self) -> StateReport:
        """Return what has happened to the earlier variables, once."""
        report, self._report = self._report, StateReport()
        return report

    # --- the way back ---

    @property
    def is_starting(self) -> bool:
        """True while an interpreter is being started from a checkpoint."""
        return self._recovery.is_starting

    def recover(self, cause: str) -> bool:
        """Go on from the newest checkpoint after the interpreter's end. Return False if there is none."""
        return self._process.is_held and self._recovery.recover(cause)

    def is_void(self, epoch: int) -> bool:
        """Return whether a frame of an epoch was sent before the broker knew of the last rollback."""
        return epoch <= self._recovery.void_epoch

    @property
    def awaits_resume(self) -> bool:
        """True from a rollback until the broker has begun the epoch after it."""
        return self._recovery.void_epoch >= self._replies.epoch

    def send_rolled_back(self) -> None:
        """Report the last rollback again, to another broker. Nobody waits for it there."""
        assert self._recovery.last is not None
        self._replies.send_control(FrameKind.ROLLED_BACK, encode(self._recovery.last))

    def resume(self, epoch: int, body: ResumeBody) -> None:
        """Begin the epoch after a rollback.

        Raises:
            InterpreterBroken: the interpreter has failed meanwhile
        """
        last = self._recovery.last
        if body.report and last is not None:
            self._report = StateReport("rolled-back", last.cause, last.checkpoint)
        cause = self._recovery.resume(epoch)
        if cause is not None:
            raise InterpreterBroken(cause)

    def start_branch(self, number: int) -> tuple[InterpreterProcess, BranchOrigin]:
        """Start an interpreter from a checkpoint, for another session. It never comes up if the copy has ended."""
        ready, taker = self._interpreter.ready, self._taker
        assert ready is not None
        copy = taker.copies[number] if taker.is_complete(number) else None
        process = self._process.start_beside((lambda _: False) if copy is None else copy.wake)
        lacking = self._first.assignment if self._first.lacks_assignment(number) else None
        return process, BranchOrigin(ready, copy, taker.not_restored.get(number, []), lacking)

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being taken, or will be soon."""
        return self._taker.is_busy or self._automatic.is_waiting

    # --- memory ---

    def limit_memory(self, used: int) -> None:
        """Drop the oldest checkpoints without a name of a session near its limit, or if they alone use too much."""
        taker = self._taker
        if not len(taker.tree):
            return
        if self._memory_limit is not None and used > self._memory_limit * 3 // 4:
            taker.drop_oldest()
            return
        most = taker.limits.max_checkpoint_bytes
        if used - (self._process.memory_bytes() or 0) > most and taker.copies.own_bytes() > most:
            taker.drop_oldest()

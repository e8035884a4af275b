"""Taking and dropping checkpoints of a session."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from replwire.deadlines import Deadline, Deadlines
from replwire.limits import Limits
from replworker.checkpoints.copies import CopySet, WaitingCopy
from replworker.checkpoints.sentences import describe_threads, missing_from
from replworker.checkpoints.session_files import KEEP_S, SessionFiles
from replworker.checkpoints.tree import CheckpointNode, CheckpointTree
from replworker.interpreter import Interpreter
from replworker.runtimes import frames

_REPORT_S = 5.0  # for a copy to report; without it there is no checkpoint
_LAST_WAIT_S = 0.05  # for a copy of an interpreter that has just died
_MAX_DROPPED = 100  # numbers kept for `ls-checkpoints`


@dataclass(frozen=True, slots=True)
class TakenCheckpoint:
    """Result of a request for a checkpoint: why there is none, or what a rollback to it will not restore."""

    error: str | None
    not_restored: list[str]


OnTaken = Callable[[TakenCheckpoint], None]


@dataclass(slots=True)
class _PendingCheckpoint:
    then: OnTaken
    deadline: Deadline
    answer: TakenCheckpoint | None = None  # of the interpreter; the copy has to report as well


class CheckpointKeeper:
    """Takes checkpoints of one interpreter and keeps them within limits.

    `off` says why no automatic ones are taken at the moment, or is empty.
    """

    def __init__(self, interpreter: Interpreter, timers: Deadlines, limits: Limits, files: SessionFiles) -> None:
        self._interpreter = interpreter
        self._files = files
        self._timers = timers
        self.limits = limits
        self.tree = CheckpointTree()
        self.copies = CopySet()
        self.dropped: list[int] = []  # because there were too many
        self.not_restored: dict[int, list[str]] = {}
        self.off = ""
        self._pending: dict[int, _PendingCheckpoint] = {}

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being taken."""
        return bool(self._pending)

    def is_complete(self, number: int) -> bool:
        """Return whether the copy of a checkpoint waits."""
        return number in self.copies and number not in self._pending

    def is_pending(self, number: int) -> bool:
        """Return whether the copy of a checkpoint is being made."""
        return number in self._pending

    def join(self, number: int, then: OnTaken) -> None:
        """Call `then`, too, when a checkpoint that is being taken waits, or there is none."""
        pending = self._pending[number]
        first = pending.then

        def both(result: TakenCheckpoint) -> None:
            first(result)
            then(result)

        pending.then = both

    def run_after(self, number: int, action: Callable[[], None]) -> None:
        """Run `action` from the loop when a checkpoint that is being taken waits, or there is none."""

        def plan(_: TakenCheckpoint) -> None:
            self._timers.call_at(time.monotonic(), lambda _: action())

        self.join(number, plan)

    def take(self, then: OnTaken, *, automatic: bool, name: str | None = None) -> CheckpointNode:
        """Request a checkpoint of the present state; `then` is called when the copy waits, or there is none."""
        copy = WaitingCopy()
        made = self.tree.add(_timestamp(), automatic=automatic, name=name)
        number = made.number
        self.copies.add(number, copy)
        longest = _REPORT_S + (KEEP_S if self._files.is_on else 0.0)
        deadline = self._timers.call_at(
            time.monotonic() + longest, lambda _: self._give_up(number, "the copy did not report")
        )
        if self._files.is_on:
            self._files.keep(number, (each.number for each in self.tree), self.limits)
        pending = self._pending[number] = _PendingCheckpoint(then, deadline)
        question = frames.CheckpointFrame(self._interpreter.next_number(), automatic)
        self._interpreter.request(question, lambda event: self._on_answer(number, pending, event), copy.inner.fileno())
        copy.inner.close()
        return made

    def inherit(self, copy: WaitingCopy, not_restored: list[str]) -> int:
        """Begin with a checkpoint of another session that the present state was copied from; return its number."""
        made = self.tree.add(_timestamp(), automatic=True)
        self.copies.add(made.number, copy)
        self.not_restored[made.number] = not_restored
        return made.number

    def begin_with(self, number: int) -> bool:
        """Begin a session with a checkpoint that was taken before. Return False if it has come to nothing."""
        first = self.tree.find(number)
        if first is not None:
            first.created = _timestamp()
        return first is not None

    def _on_answer(self, number: int, pending: _PendingCheckpoint, event: frames.FrameEvent) -> None:
        assert isinstance(event, frames.CheckpointedFrame)
        self.off = describe_threads(event) if event.refused else ""
        if self._pending.get(number) is not pending:  # it was given up, and another may have its number
            return
        error = self.off or event.error or (None if number in self.copies else "the copy ended")
        if error:
            self._give_up(number, error)
            return
        pending.answer = TakenCheckpoint(None, [*missing_from(event), *self._files.notes_of(number)])
        self._finish_reported()

    def read_copies(self) -> None:
        """Note copies that report, and those that have ended."""
        for number in self.copies.read():
            pending = self._pending.get(number)
            if pending is None:
                self.drop(number)
            elif pending.answer is not None:  # else the answer says why
                self._give_up(number, "the copy ended")
        self._finish_reported()

    def _finish_reported(self) -> None:
        for number, pending in list(self._pending.items()):
            if pending.answer is not None and self.copies[number].pid:
                del self._pending[number]
                self._timers.cancel(pending.deadline)
                self.not_restored[number] = pending.answer.not_restored
                pending.then(pending.answer)
                self.drop_surplus()

    def _give_up(self, number: int, error: str) -> None:
        pending = self._pending.get(number)
        if pending is not None:
            self.withdraw(number)
            pending.then(TakenCheckpoint(error, []))

    def withdraw(self, number: int) -> None:
        """Forget the newest checkpoint as if it had never been requested."""
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._timers.cancel(pending.deadline)
        self.copies.drop(number)
        self.tree.discard(number)
        self.not_restored.pop(number, None)

    def drop(self, number: int) -> None:
        """Drop a checkpoint."""
        self.copies.drop(number)
        self.tree.drop(number)
        self.not_restored.pop(number, None)

    def drop_surplus(self) -> None:
        """Drop the oldest checkpoints without a name beyond the limit."""
        while len(self.tree) > self.limits.max_checkpoints and self.drop_oldest():
            pass

    def drop_oldest(self) -> bool:
        """Drop the oldest checkpoint without a name that the present state does not go on from, if there is one."""
        oldest = self.tree.oldest_droppable()
        if oldest is None:
            return False
        self.drop(oldest.number)
        self.dropped = [*self.dropped[1 - _MAX_DROPPED :], oldest.number]
        return True

    def on_interpreter_killed(self) -> None:
        """Keep a copy that was made but did not report yet; give up others that are pending."""
        for number, pending in list(self._pending.items()):
            if number in self.copies and self.copies[number].wait_until_ready(_LAST_WAIT_S):
                pending.answer = pending.answer or TakenCheckpoint(None, [])
            else:
                self._give_up(number, "the interpreter ended")
        self._finish_reported()


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

"""The first checkpoint of a session, taken while its worker is still warm, so that no assignment waits for a fork.

The interpreter has no session then. Whatever starts from this checkpoint is assigned again.
"""

from __future__ import annotations

import msgspec

from replworker.checkpoints.taker import CheckpointKeeper
from replworker.interpreter import Interpreter
from replworker.runtimes import frames


class FirstCheckpoint:
    """The checkpoint of an interpreter before its assignment, if one was taken. `assignment` is what it lacks."""

    def __init__(self, taker: CheckpointKeeper, interpreter: Interpreter) -> None:
        self._taker = taker
        self._interpreter = interpreter
        self._number: int | None = None
        self.assignment: frames.AssignFrame | None = None

    def note(self, number: int) -> None:
        """Note that it is being taken; the interpreter is ready and has nothing else to do."""
        self._number = number

    def use(self, assignment: frames.AssignFrame, *, wanted: bool) -> None:
        """Begin the session with it, or without it if that is not `wanted`."""
        self.assignment = assignment
        if self._number is not None and not (wanted and self._taker.begin_with(self._number)):
            self._taker.withdraw(self._number)
            self._number = None

    def inherit(self, number: int) -> None:
        """Begin a branch with that of its source."""
        self._number = number

    def lacks_assignment(self, number: int) -> bool:
        """Return whether this is the checkpoint."""
        return number == self._number

    def assign_again(self, number: int) -> None:
        """Assign the interpreter that starts from a checkpoint, if that was taken before."""
        if self.lacks_assignment(number) and self.assignment is not None:
            frame = msgspec.structs.replace(self.assignment, n=self._interpreter.next_number())
            self._interpreter.request(frame, lambda _: None)

"""sys.stdin: reports to the worker when code waits for input, and ends at once where input is not allowed."""

from __future__ import annotations

import io
import os
import select
from _thread import get_ident

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional

    from .channel import Channel
    from .eval_scope import EvalScope

__builtins__ = SEALED

_THREAD_LOOK_MS = 50  # poll interval for a thread that waits for input of a finished eval


class StdinRaw(io.RawIOBase):
    """Raw fd 0. If it is empty and the running eval may read, sends one `need-input` frame and waits."""

    name = "<stdin>"
    mode = "rb"

    def __init__(self, gate: EvalScope, channel: Channel) -> None:
        self._gate = gate
        self._channel = channel
        self._read = os.read
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        gate = self._gate
        number = gate.current
        if not may_read(gate) or not (self._poll.poll(0) or self._wait(number)):
            return 0
        data = self._read(0, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _wait(self, number: Optional[int]) -> bool:
        gate = self._gate
        with gate.lock:  # keeps it before the eval's result
            if gate.current is None or gate.current != number:
                return False
            self._channel.send({"t": "need-input", "n": number})
        if get_ident() == gate.main:
            return bool(self._poll.poll())
        # A thread may outlive its eval; waiting forever, it would block the next eval's input().
        while gate.current == number:
            if self._poll.poll(_THREAD_LOOK_MS):
                return True
        return False


class SessionInput(io.TextIOWrapper):
    """Text of fd 0. Remaining input waits for an eval that may read."""

    gate: EvalScope

    def read(self, size: Optional[int] = -1) -> str:
        return super().read(size) if may_read(self.gate) else ""

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return super().readline(size) if may_read(self.gate) else ""

    def readlines(self, hint: int = -1) -> List[str]:  # type: ignore[override]
        return super().readlines(hint) if may_read(self.gate) else []

    def close(self) -> None:
        """Stay open: exit() closes sys.stdin, but the session continues."""


def may_read(gate: EvalScope) -> bool:
    if gate.forked or not gate.stdin or gate.current is None:
        return False
    with gate.lock:
        return not gate.is_background()

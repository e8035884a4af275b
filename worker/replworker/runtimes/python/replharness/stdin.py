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

    def __init__(self, scope: EvalScope, channel: Channel) -> None:
        self._scope = scope
        self._channel = channel
        self._read = os.read
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        scope = self._scope
        number = scope.current
        if not may_read(scope) or not (self._poll.poll(0) or self._wait(number)):
            return 0
        data = self._read(0, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _wait(self, number: Optional[int]) -> bool:
        scope = self._scope
        with scope.lock:  # keeps it before the eval's result
            if scope.current is None or scope.current != number:
                return False
            self._channel.send({"t": "need-input", "n": number})
        if get_ident() == scope.main:
            return bool(self._poll.poll())
        # A thread may outlive its eval; waiting forever, it would block the next eval's input().
        while scope.current == number:
            if self._poll.poll(_THREAD_LOOK_MS):
                return True
        return False


class SessionInput(io.TextIOWrapper):
    """Text of fd 0. Remaining input waits for an eval that may read."""

    scope: EvalScope

    def read(self, size: Optional[int] = -1) -> str:
        return super().read(size) if may_read(self.scope) else ""

    def readline(self, size: int = -1) -> str:  # type: ignore[override]
        return super().readline(size) if may_read(self.scope) else ""

    def readlines(self, hint: int = -1) -> List[str]:  # type: ignore[override]
        return super().readlines(hint) if may_read(self.scope) else []

    def close(self) -> None:
        """Stay open: exit() closes sys.stdin, but the session continues."""


def may_read(scope: EvalScope) -> bool:
    if scope.forked or not scope.stdin or scope.current is None:
        return False
    with scope.lock:
        return not scope.is_background()

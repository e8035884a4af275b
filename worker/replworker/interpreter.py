"""Questions to the interpreter and their answers, tied together by number. What it may not say raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from replworker.runtimes import frames
from replworker.runtimes.interpreter_process import InterpreterProcess

_NAMESPACES = {"python": "__main__", "node": "globalThis", "bash": "shell"}
Callback = Callable[[frames.FrameEvent], None]


class InterpreterBroken(Exception):
    """The interpreter can run nothing more, and has not ended; the text says why."""


class NumberedFrame(Protocol):
    """A frame that has an answer."""

    n: int


class Interpreter:
    """One child's control channel."""

    def __init__(self, child: InterpreterProcess, on_ready: Callable[[], None]) -> None:
        self._child = child
        self._on_ready = on_ready
        self._callbacks: dict[int, Callback] = {}
        self._count = 0
        self.ready: frames.ReadyFrame | None = None

    def supports(self, op: str) -> bool:
        """Whether this runtime answers such a frame."""
        return self.ready is not None and op in self.ready.can

    @property
    def namespace(self) -> str:
        """What the place is called where code runs."""
        return _NAMESPACES.get(self.ready.runtime, "") if self.ready is not None else ""

    def next_number(self) -> int:
        """A number for the next question."""
        self._count += 1
        return self._count

    def request(self, question: NumberedFrame, then: Callback, fd: int | None = None) -> None:
        """Send; `then` gets what is said about it. A descriptor travels along."""
        self._callbacks[question.n] = then
        self._child.send(frames.encode(question), fd)

    def ignore_reply(self, number: int) -> None:
        """The answer, which may still come, is of no use any more."""
        self._callbacks[number] = lambda _: None

    def handle_frame(self, body: bytes) -> None:
        """One frame of the interpreter. Raises ValueError or msgspec's error for one that may not be said now, and
        InterpreterBroken for its last one."""
        event = frames.decode(body)
        if isinstance(event, frames.BrokenFrame):
            raise InterpreterBroken(event.cause)
        if isinstance(event, frames.ReadyFrame):
            if self.ready is not None:
                raise ValueError("said ready twice")
            self.ready = event
            self._on_ready()
            return
        then = self._callbacks.get(event.n)
        if then is None:
            raise ValueError("answered what was not asked")
        if not isinstance(event, frames.NeedInputFrame):
            del self._callbacks[event.n]
        then(event)

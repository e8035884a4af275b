"""Requests to the interpreter, matched with replies by number. Invalid frames raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from replworker.runtimes import frames
from replworker.runtimes.interpreter_process import InterpreterProcess

_NAMESPACES = {"python": "__main__", "node": "globalThis", "bash": "shell"}
Callback = Callable[[frames.FrameEvent], None]


class InterpreterBroken(Exception):
    """The interpreter cannot continue but has not exited. The message says why."""


class NumberedFrame(Protocol):
    """A request frame with a number."""

    n: int


class Interpreter:
    """Control channel of one interpreter. `ready` is known already if it is a copy of another session's."""

    def __init__(
        self,
        process: InterpreterProcess,
        on_ready: Callable[[], None],
        on_woken: Callable[[], None],
        ready: frames.ReadyFrame | None = None,
    ) -> None:
        self._process = process
        self._on_ready = on_ready
        self._on_woken = on_woken
        self._callbacks: dict[int, Callback] = {}
        self._count = 0
        self.ready = ready

    def supports(self, op: str) -> bool:
        """Return whether the runtime supports a frame."""
        return self.ready is not None and op in self.ready.can

    @property
    def namespace(self) -> str:
        """Name of the namespace that code runs in."""
        return _NAMESPACES.get(self.ready.runtime, "") if self.ready is not None else ""

    def next_number(self) -> int:
        """Return the next request number."""
        self._count += 1
        return self._count

    def request(self, question: NumberedFrame, then: Callback, fd: int | None = None) -> None:
        """Send a request; `then` gets its reply frames. A descriptor may be attached."""
        self._callbacks[question.n] = then
        self._process.send(frames.encode(question), fd, question.n)

    def ignore_reply(self, number: int) -> None:
        """Ignore the reply to a request, which may still arrive."""
        self._callbacks[number] = lambda _: None

    def forget_requests(self) -> None:
        """Forget all requests: another interpreter takes the place of the one that was asked."""
        self._callbacks.clear()

    def handle_frame(self, body: bytes) -> None:
        """Handle one frame of the interpreter.

        Raises:
            ValueError: the frame is not expected now; or msgspec's error if it is malformed
            InterpreterBroken: the interpreter cannot continue
        """
        event = frames.decode(body)
        if isinstance(event, frames.BrokenFrame):
            raise InterpreterBroken(event.cause)
        if isinstance(event, frames.ReadyFrame):
            if self.ready is not None:
                raise ValueError("sent ready twice")
            self.ready = event
            self._on_ready()
            return
        if isinstance(event, frames.WokenFrame):
            self._on_woken()
            return
        then = self._callbacks.get(event.n)
        if then is None:
            raise ValueError("sent an unexpected reply")
        if not isinstance(event, frames.NeedInputFrame):
            del self._callbacks[event.n]
        then(event)

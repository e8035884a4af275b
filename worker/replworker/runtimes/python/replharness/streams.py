"""sys.stdout, sys.stderr and sys.stdin of the user's code."""

from __future__ import annotations

import io
import sys
from _thread import get_ident

from . import SEALED
from .stdin import SessionInput, StdinRaw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

    from .channel import Channel
    from .eval_scope import EvalScope

__builtins__ = SEALED

_write = io.TextIOWrapper.write


class SessionOutput(io.TextIOWrapper):
    """Text to fd 1 or 2, flushed at each line. Threads of earlier evals write to the background pipe."""

    scope: EvalScope

    def write(self, text: str) -> int:
        if get_ident() == self.scope.main:  # fast path: print() in an eval
            return _write(self, text)
        with self.scope.lock:
            if not self.scope.is_background():
                return _write(self, text)
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        self.scope.write_background(text)
        return len(text)


class UserStreams:
    """Creates the three streams, installs them before an eval, and flushes them after it."""

    def __init__(self, scope: EvalScope, channel: Channel) -> None:
        self._scope = scope
        self._channel = channel
        self._out = self._output(1)
        self._err = self._output(2)
        self._in = self._input()
        self.restore()

    def restore(self) -> None:
        """Reinstall streams that user code replaced, closed or detached."""
        if _is_closed(self._out):
            self._out = self._output(1)
        if _is_closed(self._err):
            self._err = self._output(2)
        if _is_closed(self._in):
            self._in = self._input()
        sys.stdout = sys.__stdout__ = self._out  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = self._err  # type: ignore[misc]
        sys.stdin = sys.__stdin__ = self._in  # type: ignore[misc]

    def foreign(self) -> List[Any]:
        """Return streams installed by user code; accessing one runs user code."""
        here = sys.__dict__.get  # user code may have deleted sys.stdout
        pairs = ((here("stdout"), self._out), (here("stderr"), self._err))
        return [stream for stream, ours in pairs if stream is not ours and stream is not None]

    def flush(self) -> None:
        for stream in (self._out, self._err):
            try:
                stream.flush()
            except BaseException:
                pass  # closed, detached, or without descriptor: the user's choice

    def _output(self, fd: int) -> SessionOutput:
        name = "<stdout>" if fd == 1 else "<stderr>"
        raw = io.FileIO(fd, "w", closefd=False)
        raw.name = name
        stream = SessionOutput(io.BufferedWriter(raw), "utf-8", "backslashreplace", "\n", line_buffering=True)
        stream.scope = self._scope
        stream.mode = "w"  # type: ignore[misc]
        return stream

    def _input(self) -> SessionInput:
        stream = SessionInput(io.BufferedReader(StdinRaw(self._scope, self._channel)), "utf-8", "surrogateescape")
        stream.scope = self._scope
        stream.mode = "r"  # type: ignore[misc]
        return stream


def _is_closed(stream: io.TextIOWrapper) -> bool:
    try:
        return stream.closed
    except ValueError:  # detached
        return True

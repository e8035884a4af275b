"""SIGINT handling: interrupts user code only."""

from __future__ import annotations

# The signal module would import enum, functools and collections.
import _signal  # type: ignore[import-not-found]

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Optional, Tuple

__builtins__ = SEALED

_SIGINT = 2


class Interrupts:
    """SIGINT state. User code is entered only through `guard`, which no exception leaves."""

    def __init__(self) -> None:
        self._armed = False
        self._was_raised = False
        self._arrived_early = False
        self._guard_code = self.guard.__code__
        self._divert: Optional[Callable[[FrameType], bool]] = None
        self._signal, self._getsignal = _signal.signal, _signal.getsignal
        self._handler = self._on_sigint  # one object, to compare by identity
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_SIGINT])  # the mask is inherited, and may be anything
        self.install()

    def install(self) -> None:
        """Install the SIGINT handler (again)."""
        if self._getsignal(_SIGINT) is not self._handler:
            self._signal(_SIGINT, self._handler)

    def divert(self, to: Optional[Callable[[FrameType], bool]]) -> None:
        """Offer interrupts that hit a frame to `to` first; None: nobody."""
        self._divert = to

    def expect(self, asked: Callable[[], bool]) -> None:
        """Begin an eval: an interrupt from now on, or already known to `asked`, ends it however early it arrives."""
        self._arrived_early = False
        if asked():
            self._arrived_early = True

    def check(self) -> None:
        """Raise the interrupt that arrived between expect() and the guard."""
        if self._arrived_early:
            self._arrived_early = False
            self._was_raised = True
            raise KeyboardInterrupt

    def uninterrupted(self, body: Callable[[], Any]) -> Any:
        """Run `body` without interrupts inside a guard, and raise one that arrived meanwhile afterwards.

        For the harness's imports: an aborted import leaves broken modules that later imports do not repair.
        """
        self._arrived_early = False
        self._armed = False
        try:
            return body()
        finally:
            self._armed = True
            self.check()

    def guard(self, body: Callable[[], Any]) -> Tuple[Any, Optional[BaseException]]:
        """Run `body` with interrupts; return its result and None, or None and its exception.

        A signal that hits this very frame raises at most once, so two levels of `except` suffice.
        """
        self._was_raised = False
        try:
            try:
                self._armed = True
                value = body()
                self._armed = False
                return value, None
            except BaseException as exc:
                self._armed = False
                return None, exc
        except BaseException as exc:
            self._armed = False
            return None, exc

    def _on_sigint(self, _number: int, frame: Optional[FrameType]) -> None:
        if not self._armed:
            self._arrived_early = True  # expect(), called before the next eval, discards a stale one
            return
        if frame is not None:
            if frame.f_code is self._guard_code and self._was_raised:
                return
            if self._divert is not None and self._divert(frame):
                return
        self._was_raised = True
        raise KeyboardInterrupt

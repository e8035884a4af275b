"""SIGINT: stops user code while it runs, and touches nothing else."""

from __future__ import annotations

# signal itself would import enum, functools and collections for the sake of names.
import _signal  # type: ignore[import-not-found]

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable, Optional, Tuple

__builtins__ = SEALED

_SIGINT = 2


class Interrupts:
    """The guard is the only place from which user code is entered, and no exception leaves it."""

    def __init__(self) -> None:
        self._armed = False
        self._was_raised = False
        self._arrived_early = False
        self._guard_code = self.guard.__code__
        self._divert: Optional[Callable[[FrameType], bool]] = None
        self._signal, self._getsignal = _signal.signal, _signal.getsignal
        self._handler = self._on_sigint  # one object, so that "is it still there" is an identity
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_SIGINT])  # the mask is inherited, and may be anything
        self.install()

    def install(self) -> None:
        """Take SIGINT (back)."""
        if self._getsignal(_SIGINT) is not self._handler:
            self._signal(_SIGINT, self._handler)

    def divert(self, to: Optional[Callable[[FrameType], bool]]) -> None:
        """Ask `to` first whether it takes an interrupt that found this frame running; None: nobody."""
        self._divert = to

    def expect(self, asked: Callable[[], bool]) -> None:
        """An eval begins: an interrupt from here on, or one that `asked` knows of, ends it however early it comes."""
        self._arrived_early = False
        if asked():
            self._arrived_early = True

    def check(self) -> None:
        """Raise the interrupt that came between expect() and the guard."""
        if self._arrived_early:
            self._arrived_early = False
            self._was_raised = True
            raise KeyboardInterrupt

    def uninterrupted(self, body: Callable[[], Any]) -> Any:
        """Inside a guard: run `body` closed to interrupts, and raise one that came meanwhile after it.

        For imports of ours: one that breaks off leaves modules in pieces, and no later import mends them.
        """
        self._arrived_early = False
        self._armed = False
        try:
            return body()
        finally:
            self._armed = True
            self.check()

    def guard(self, body: Callable[[], Any]) -> Tuple[Any, Optional[BaseException]]:
        """Run `body` open to interrupts; its result and None, or None and what it raised.

        A signal that lands in this very frame raises at most once, so two levels of `except` are enough for any storm.
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
            self._arrived_early = True  # told from a late one by expect(), which comes before the next eval
            return
        if frame is not None:
            if frame.f_code is self._guard_code and self._was_raised:
                return
            if self._divert is not None and self._divert(frame):
                return
        self._was_raised = True
        raise KeyboardInterrupt

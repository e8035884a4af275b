"""Eval scope: the running eval, and whether a thread belongs to it."""

from __future__ import annotations

import os
from _thread import RLock, _count, allocate_lock, get_ident, get_native_id

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import FrozenSet, Optional

__builtins__ = SEALED

_PIECE_BYTES = 1 << 16
_NONE: FrozenSet[int] = frozenset()


class EvalScope:
    """Active while an eval runs. Threads older than the eval are background threads; their output is not the eval's.

    Native ids are compared, because pthread ids are reused as soon as a thread ends.
    """

    def __init__(self, late_fd: int) -> None:
        os.set_inheritable(late_fd, False)
        self.main = get_ident()
        self.current: Optional[int] = None
        self.stdin = False
        self.forked = False
        self.lock = RLock()  # held during `is_background` and the write that depends on it
        self._background_ids: FrozenSet[int] = _NONE
        self._background_fd = late_fd
        self._background_lock = allocate_lock()
        self._write = os.write
        self._listdir = os.listdir
        self._getpid = os.getpid

    def begin(self, number: int, stdin: bool) -> None:
        self._background_ids = self._alive() if _count() else _NONE
        self.stdin = stdin
        self.current = number

    def end(self) -> None:
        with self.lock:  # threads still admitted have written before this returns
            self.current = None
            self.stdin = False

    def is_background(self) -> bool:
        """Return whether the calling thread belongs to an earlier eval. Call it with the lock held."""
        if self.forked or get_ident() == self.main:
            return False
        return self.current is None or get_native_id() in self._background_ids

    def write_background(self, text: str) -> None:
        """Write a background thread's text to the background pipe."""
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        with self._background_lock:
            try:
                while data:
                    data = data[self._write(self._background_fd, data[:_PIECE_BYTES]) :]
            except OSError:
                pass  # nobody reads it any more

    def after_fork(self) -> None:
        """Reset in a forked child: all text is its own, and it cannot ask for input."""
        self.main = get_ident()
        self.forked = True
        self._background_ids = _NONE
        self.lock, self._background_lock = RLock(), allocate_lock()

    def revive(self) -> None:
        """Undo `after_fork` in an interpreter started from a copy."""
        self.main = get_ident()
        self.forked = False

    def _alive(self) -> FrozenSet[int]:
        main = self._getpid()  # the main thread's native id
        try:
            return frozenset(map(int, self._listdir("/proc/self/task"))) - {main}
        except OSError:
            import threading  # no /proc: use the threads known to threading

            return frozenset(t.native_id for t in threading.enumerate() if t.native_id is not None) - {main}

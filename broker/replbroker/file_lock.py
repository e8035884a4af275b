"""A lock file: the kernel gives the lock back when its process dies, whatever end that comes to."""

from __future__ import annotations

import fcntl
import os
import time

_RETRY_S = 0.02


class AlreadyLocked(Exception):
    """Another process has it."""


class FileLock:
    """Ours from here on. The file stays at the end: without it two processes could hold two locks.

    Waits so long for one that is just given back. Raises Locked, and OSError.
    """

    def __init__(self, path: str, timeout_s: float = 0.0) -> None:
        self.path = path
        self._fd = _acquire(path, timeout_s)

    def is_held(self) -> bool:
        """Whether the file is still the one that we hold: when its directory was cleared, another may be there."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except OSError:
            return False

    def reacquire(self) -> None:
        """Hold the file that is there now. Raises Locked, and OSError."""
        fd = _acquire(self.path, 0.0)
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Give it back."""
        os.close(self._fd)


def _acquire(path: str, timeout_s: float) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= end:
                os.close(fd)
                raise AlreadyLocked(path) from None
        time.sleep(_RETRY_S)

"""Lock files: the kernel releases the lock when its process dies, however that happens."""

from __future__ import annotations

import os

from replwire.flock import try_flock


class AlreadyLocked(Exception):
    """Another process holds the lock."""


class FileLock:
    """Exclusive lock on a file.

    The file stays at the end: if it were removed, two processes could each hold a lock on a file of this name.

    Args:
        path: The lock file; created if it is missing.
        timeout_s: Seconds to wait for a process that is about to release the lock.

    Raises:
        AlreadyLocked: Another process holds the lock.
        OSError: The file cannot be opened or locked.
    """

    def __init__(self, path: str, timeout_s: float = 0.0) -> None:
        self.path = path
        self._fd = _acquire(path, timeout_s)

    def is_held(self) -> bool:
        """Return whether the file at the path is still the locked one; a cleared directory may hold another."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except OSError:
            return False

    def reacquire(self) -> None:
        """Lock the file that is at the path now.

        Raises:
            AlreadyLocked: Another process holds the lock.
            OSError: The file cannot be opened or locked.
        """
        fd = _acquire(self.path, 0.0)
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Release the lock."""
        os.close(self._fd)


def _acquire(path: str, timeout_s: float) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_flock(fd, timeout_s):
            raise AlreadyLocked(path)
    except BaseException:
        os.close(fd)
        raise
    return fd

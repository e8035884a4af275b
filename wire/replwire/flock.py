"""Advisory locks of the kernel on open files (flock(2)); the kernel releases them when their process dies."""

from __future__ import annotations

import fcntl
import time

_RETRY_S = 0.02


def try_flock(fd: int, timeout_s: float = 0.0) -> bool:
    """Lock an open file or directory exclusively.

    Args:
        fd: Its descriptor; closing it releases the lock.
        timeout_s: Seconds to wait for another process to release it.

    Returns:
        False when another process holds the lock until then.

    Raises:
        OSError: The file cannot be locked at all.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(_RETRY_S)

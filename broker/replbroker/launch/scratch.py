"""A folder for the sockets that the broker's own parts meet at: out of sessions' sight, and never left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "replctl-broker-"


@contextmanager
def scratch() -> Iterator[Path]:
    """Have such a folder in TMPDIR for as long as the context lasts, and take away those of brokers that were killed.

    Its lock says that it is in use. The kernel gives that up with the broker, whatever end that comes to; and
    systemd-tmpfiles, which clears old files away, leaves locked folders alone.
    """
    _sweep(tempfile.gettempdir())
    path, lock = _make()
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[str, int]:
    while True:
        path = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX))
        lock = _lock(path)
        if lock is not None:
            return path, lock
        # Another broker's start came in between and took it for one that was left.


def _lock(path: str) -> int | None:
    """The locked folder, unless somebody has it, or it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return None


def _sweep(parent: str) -> None:
    with os.scandir(parent) as entries:  # others may put any number there
        paths = [entry.path for entry in entries if entry.name.startswith(_PREFIX) and _is_ours(entry.path)]
    for path in paths:
        if (lock := _lock(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _is_ours(path: str) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()

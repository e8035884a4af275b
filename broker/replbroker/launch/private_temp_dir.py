"""Private directory for the sockets between the broker's own parts, hidden from sessions and always cleaned up."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from replbroker.endpoints import StartError
from replwire.flock import try_flock

_PREFIX = "replctl-broker-"
_ATTEMPTS = 10
_RETRY_S = 0.02


class PrivateTempDir:
    """A directory of its own in TMPDIR; those of brokers that were killed are deleted.

    Workers that outlive their broker look for the next one in the same directory, so that takes it over, or creates it
    again: they connect to no other user's.

    The directory is locked while it is in use. The kernel releases the lock when the broker dies, however that happens;
    and systemd-tmpfiles, which deletes old files, leaves locked directories alone.

    Args:
        previous: The directory of the broker before this one.

    Attributes:
        path: The directory.
        is_left: Whether it stays at the end, for the broker after this one.

    Raises:
        StartError: The directory cannot be created.
    """

    def __init__(self, previous: str | None = None) -> None:
        self.is_left = False
        try:
            path, self._lock = (_take_over(previous) if previous else None) or _create()
            _remove_stale(tempfile.gettempdir())
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise StartError(f"{where}{error.strerror}; TMPDIR names a directory for temporary files") from None
        self.path = Path(path)

    def exists(self) -> bool:
        """Return whether the directory is still the one that was created."""
        try:
            return os.path.samestat(os.fstat(self._lock), os.lstat(self.path))
        except OSError:
            return False

    def recreate(self) -> None:
        """Create the directory again at the same path.

        Raises:
            OSError: It cannot be created.
        """
        self.path.mkdir(mode=0o700)
        lock = _lock(str(self.path))
        if lock is None:
            raise OSError(errno.EAGAIN, "it is deleted as soon as it is created", str(self.path))
        os.close(self._lock)
        self._lock = lock

    def remove(self) -> None:
        """Delete the directory, unless it was left to another broker."""
        if not self.is_left:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _take_over(path: str) -> tuple[str, int] | None:
    """Lock and empty the directory of an earlier broker, or create it again; None where it cannot be had."""
    for _ in range(_ATTEMPTS):
        try:
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
            lock = _lock(path) if _is_own_directory(path) else None
        except OSError:
            return None
        if lock is not None:
            _empty(path)
            return path, lock
        time.sleep(_RETRY_S)  # another broker that is starting has taken it for a stale one
    return None


def _empty(path: str) -> None:
    for name in os.listdir(path):
        entry = f"{path}/{name}"
        if os.path.isdir(entry) and not os.path.islink(entry):
            shutil.rmtree(entry, ignore_errors=True)
        else:
            Path(entry).unlink(missing_ok=True)


def _create() -> tuple[str, int]:
    """Create a directory, and return its path and the descriptor that locks it."""
    for _ in range(_ATTEMPTS):
        path = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = _lock(path)
        except OSError:
            os.rmdir(path)
            raise
        if lock is not None:
            return path, lock
        # Another broker that is starting has taken it for a stale one.
    raise OSError(errno.EAGAIN, "it is deleted as soon as it is created", tempfile.gettempdir())


def _lock(path: str) -> int | None:
    """Lock a directory; return its descriptor, or None if it is locked by another process or was deleted."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if try_flock(fd) and os.fstat(fd).st_nlink:
        return fd
    os.close(fd)
    return None


def _remove_stale(parent: str) -> None:
    """Delete the directories of dead brokers, unless the parent may not be listed."""
    try:
        with os.scandir(parent) as entries:  # any user may create any number of entries there
            paths = [
                entry.path for entry in entries if entry.name.startswith(_PREFIX) and _is_own_directory(entry.path)
            ]
    except PermissionError:
        return
    for path in paths:
        if (lock := _lock(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _is_own_directory(path: str) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077

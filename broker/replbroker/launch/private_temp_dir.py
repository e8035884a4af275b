"""A folder for the sockets that the broker's own parts meet at: out of sessions' sight, and never left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from replbroker.endpoints import StartError

_PREFIX = "replctl-broker-"
_ATTEMPTS = 10


class PrivateTempDir:
    """Such a folder in TMPDIR. Those of brokers that were killed are taken away.

    Its lock says that it is in use. The kernel gives that up with the broker, whatever end that comes to; and
    systemd-tmpfiles, which clears old files away, leaves locked folders alone. Raises StartError.
    """

    def __init__(self) -> None:
        try:
            _remove_stale(tempfile.gettempdir())
            path, self._lock = _create()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise StartError(f"{where}{error.strerror}; TMPDIR names a folder for temporary files") from None
        self.path = Path(path)

    def exists(self) -> bool:
        """Whether the folder is still the one that was made."""
        try:
            return os.path.samestat(os.fstat(self._lock), os.lstat(self.path))
        except OSError:
            return False

    def recreate(self) -> None:
        """Make it anew in the same place. Raises OSError."""
        self.path.mkdir(mode=0o700)
        lock = _lock(str(self.path))
        if lock is None:
            raise OSError(errno.EAGAIN, "it is taken away as soon as it is made", str(self.path))
        os.close(self._lock)
        self._lock = lock

    def remove(self) -> None:
        """Take it away."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _create() -> tuple[str, int]:
    """Raises OSError."""
    for _ in range(_ATTEMPTS):
        path = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = _lock(path)
        except OSError:
            os.rmdir(path)
            raise
        if lock is not None:
            return path, lock
        # Another broker's start came in between and took it for one that was left.
    raise OSError(errno.EAGAIN, "it is taken away as soon as it is made", tempfile.gettempdir())


def _lock(path: str) -> int | None:
    """The locked folder, unless somebody has it, or it is gone. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            return fd
    except BlockingIOError:
        pass
    os.close(fd)
    return None


def _remove_stale(parent: str) -> None:
    """Where it may not be listed, what was left there stays. Raises OSError."""
    try:
        with os.scandir(parent) as entries:  # others may put any number there
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
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()

"""Private directories of embedded brokers; one that a killed program has left is removed by the next program."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from replwire.flock import try_flock

_PREFIX = "replctl-"
_LOCK = "embedded.lock"  # held as long as the program lives


class EmbeddedDirectory:
    """A temporary directory that only this user can enter, locked while the program has it.

    Attributes:
        path: The directory.
    """

    def __init__(self) -> None:
        _remove_stale(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # another program took the directory for a stale one
                continue
            if try_flock(self._lock) and (self.path / _LOCK).exists():
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the directory with everything in it. A second call has no effect."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_stale(parent: Path) -> None:
    """Remove directories whose program has ended without doing so."""
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or removed just now
            continue
        try:
            owners = {os.fstat(lock).st_uid, os.lstat(path.parent).st_uid}
            if owners == {os.getuid()} and try_flock(lock):
                shutil.rmtree(path.parent, ignore_errors=True)
        finally:
            os.close(lock)

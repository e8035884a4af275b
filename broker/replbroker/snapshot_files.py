"""Files of snapshots that clients send to the broker."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path

from replwire.private_directories import make_private_directory

_log = logging.getLogger(__name__)


class SnapshotFiles:
    """Files in the directory of snapshots. Their names contain the broker's pid, so that a later one removes them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path_of(self, snapshot: str) -> str:
        """Return the path of a snapshot's file."""
        return str(self._directory / f"{os.getpid()}-{snapshot}")

    def remove_unused(self, used: Collection[str]) -> None:
        """Remove what this process has left before it began again. A broker with another pid is known to be dead."""
        for path in self._directory.glob(f"{os.getpid()}-*"):
            if str(path) not in used:
                delete_snapshot(str(path))

    def append(self, snapshot: str, data: bytes) -> str | None:
        """Append a part to a snapshot's file. Return an error message, or None."""
        try:
            make_private_directory(self._directory)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self.path_of(snapshot), flags, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)
        except OSError as error:
            return error.strerror
        return None


def delete_snapshot(path: str) -> None:
    """Delete a snapshot's file, if it still exists."""
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        _log.warning("a snapshot could not be deleted: %s: %s", path, error.strerror)

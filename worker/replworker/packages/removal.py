"""Removal of layers: those of sessions that are open no more, and all that dead workers and installers have left."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from replworker.packages.layers import JOURNAL_FILE, PackagePaths, tree_bytes
from replworker.runtimes import removal


class PackageRemoval:
    """Sets directories aside, which takes a moment, and deletes them, which may take long."""

    def __init__(self, paths: PackagePaths) -> None:
        self._paths = paths

    def set_aside_session(self, session: str) -> None:
        """Move the layers of a session out of the way."""
        with suppress(FileNotFoundError):
            removal.set_aside_entry(self._paths.root, "layers", session)

    def set_aside_stale(self) -> None:
        """Move out of the way what belongs to processes that have ended."""
        for directory in ("mounts", "shared/jobs"):
            for name in _names(f"{self._paths.root}/{directory}"):
                if not _is_alive(name.partition("-")[0]):
                    removal.set_aside_entry(self._paths.root, *directory.split("/"), name)

    def set_aside_closed(self, open_sessions: Callable[[str], set[str]]) -> None:
        """Move the layers of sessions out of the way that are open no more.

        Args:
            open_sessions: returns the ids of the sessions that are open by a journal, from its path
        """
        known: dict[str, set[str]] = {}
        for session in _names(self._paths.layers):
            with suppress(FileNotFoundError):
                journal = Path(self._paths.layers, session, JOURNAL_FILE).read_text()
                if journal not in known:
                    known[journal] = open_sessions(journal)
                if session not in known[journal]:
                    self.set_aside_session(session)

    def delete(self, cache_bytes: int) -> list[str]:
        """Delete what was set aside, and the installers' cache if it is larger; return failures as text."""
        self._empty_cache(cache_bytes)
        return removal.delete_set_aside(self._paths.root)

    def _empty_cache(self, most: int) -> None:
        """Set the cache aside if it is too large and no installer uses it."""
        try:
            if tree_bytes(f"{self._paths.shared}/cache") <= most:
                return
            with open(f"{self._paths.shared}/.lock", "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                removal.set_aside_entry(self._paths.root, "shared", "cache")
        except (FileNotFoundError, BlockingIOError):  # none, or in use: the next time
            return


def _names(directory: str) -> Iterator[str]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        yield from [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_alive(pid: str) -> bool:
    return pid.isdecimal() and os.path.exists(f"/proc/{pid}")

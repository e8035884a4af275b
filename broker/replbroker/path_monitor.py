"""Monitors the broker's own directories and sockets, and recreates those that vanish.

Temporary directories get cleaned up, run directories go with a login, and people delete what they do not recognize.
The kernel notifies the broker at once (inotify); where it does not, the paths are polled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from replbroker.endpoints import StartError
from replbroker.file_lock import AlreadyLocked
from replbroker.file_watch import FileWatch
from replbroker.loop_parts import Register, Unregister

_DEBOUNCE_S = 0.1  # let whoever removes a directory finish: new files in it would stop them
_POLL_S, _WATCHED_POLL_S = 2.0, 15.0  # without and with notifications
_log = logging.getLogger(__name__)


class MonitoredPath(Protocol):
    """A part of the broker in the file system."""

    directory: str  # to be watched

    def repair(self) -> str | None:
        """Recreate what is missing.

        Returns:
            A sentence about what was done, None where nothing had to be.

        Raises:
            OSError: It cannot be recreated.
            StartError: It cannot be recreated.
            AlreadyLocked: Another broker has taken the place.
        """


class PathMonitor:
    """Monitor of all these paths.

    Args:
        paths: Paths to monitor.
        on_problems_changed: Called with the problems that remain, when they have changed.
    """

    def __init__(self, paths: Sequence[MonitoredPath], on_problems_changed: Callable[[list[str]], None]) -> None:
        self._paths = paths
        self._on_problems_changed = on_problems_changed
        self._problems: dict[str, str] = {}
        try:
            self._file_watch: FileWatch | None = FileWatch()
        except OSError:
            self._file_watch = None
        self.due: float | None = time.monotonic()

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Register the descriptor of the kernel's notifications."""
        if self._file_watch is not None:
            register(self._file_watch.fd, self._on_change)

    def _on_change(self) -> None:
        assert self._file_watch is not None, "registered only with a watch"
        self._file_watch.take_changes()
        soon = time.monotonic() + _DEBOUNCE_S
        self.due = soon if self.due is None else min(self.due, soon)

    def flush(self, now: float) -> None:
        """Check every path, if it is time."""
        if self.due is None or now < self.due:
            return
        before = dict(self._problems)
        for path in self._paths:
            self._repair(path)
        watch = self._file_watch
        watched = [watch is not None and watch.add(path.directory) for path in self._paths]
        self.due = now + (_WATCHED_POLL_S if all(watched) and not self._problems else _POLL_S)
        if self._problems != before:
            self._on_problems_changed(list(self._problems.values()))

    def _repair(self, path: MonitoredPath) -> None:
        try:
            done = path.repair()
        except AlreadyLocked as error:
            self._on_failure(path, f"{error}: another broker has taken it; clients cannot find this broker there")
        except StartError as error:
            self._on_failure(path, f"{path.directory}: {error}; it cannot be recreated")
        except OSError as error:
            reason = f"{error.filename or path.directory}: {error.strerror or error}"
            self._on_failure(path, f"{reason}; it cannot be recreated")
        else:
            self._problems.pop(path.directory, None)
            if done is not None:
                _log.info("%s", done)

    def _on_failure(self, path: MonitoredPath, problem: str) -> None:
        if self._problems.get(path.directory) != problem:
            _log.warning("%s", problem)
        self._problems[path.directory] = problem

    def close(self) -> None:
        """Stop monitoring."""
        if self._file_watch is not None:
            self._file_watch.close()

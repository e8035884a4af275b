"""The broker's own directories and sockets, looked after while it runs: what vanishes is made anew, or told.

Temporary directories are tidied, run directories go with a login, and people delete what they do not know. The kernel
tells of it at once (inotify); where it does not, they are looked at now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from replbroker.core.effects import PublishEvent
from replbroker.endpoints import StartError
from replbroker.file_lock import AlreadyLocked
from replbroker.file_watch import FileWatch
from replbroker.sinks.event_sink import Register, Unregister

_DEBOUNCE_S = 0.1  # who removes a folder is let finish: what comes into it meanwhile would stop them
_POLL_S, _WATCHED_POLL_S = 2.0, 15.0  # between two looks, by whether the kernel tells of changes


class MonitoredPath(Protocol):
    """Something of the broker's on the file system."""

    directory: str  # to be watched

    def repair(self) -> str | None:
        """Make anew what is gone; what was done, or None where nothing had to be.

        Raises OSError, StartError, and Locked.
        """


class PathMonitor:
    """All of them. `troubles` gets those that could not be mended."""

    def __init__(
        self,
        paths: Sequence[MonitoredPath],
        warn: Callable[[str], None],
        on_problems_changed: Callable[[list[str]], None],
    ) -> None:
        self._paths = paths
        self._warn = warn
        self._on_problems_changed = on_problems_changed
        self._problems: dict[str, str] = {}
        try:
            self._file_watch: FileWatch | None = FileWatch()
        except OSError:
            self._file_watch = None
        self.due: float | None = time.monotonic()

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Have the kernel's word polled."""
        if self._file_watch is not None:
            register(self._file_watch.fd, self._on_change)

    def _on_change(self) -> None:
        assert self._file_watch is not None
        self._file_watch.take_changed()
        soon = time.monotonic() + _DEBOUNCE_S
        self.due = soon if self.due is None else min(self.due, soon)

    def on_event(self, event: PublishEvent, now: float) -> None:
        """Events are not for this one."""

    def flush(self, now: float) -> None:
        """Look at all of them, if it is time."""
        if self.due is None or now < self.due:
            return
        before = dict(self._problems)
        for place in self._paths:
            self._repair(place)
        watched = (
            [self._file_watch.add(place.directory) for place in self._paths]
            if self._file_watch is not None
            else [False]
        )
        self.due = now + (_WATCHED_POLL_S if all(watched) and not self._problems else _POLL_S)
        if self._problems != before:
            self._on_problems_changed(list(self._problems.values()))

    def _repair(self, place: MonitoredPath) -> None:
        try:
            done = place.repair()
        except AlreadyLocked as taken:
            self._on_failure(place, f"{taken}: another broker has taken it; nobody finds this one there")
        except StartError as error:
            self._on_failure(place, f"{place.directory}: {error}; it cannot be made anew")
        except OSError as error:
            self._on_failure(
                place, f"{error.filename or place.directory}: {error.strerror or error}; it cannot be made anew"
            )
        else:
            self._problems.pop(place.directory, None)
            if done is not None:
                self._warn(done)

    def _on_failure(self, place: MonitoredPath, trouble: str) -> None:
        if self._problems.get(place.directory) != trouble:
            self._warn(trouble)
        self._problems[place.directory] = trouble

    def close(self) -> None:
        """Look no more."""
        if self._file_watch is not None:
            self._file_watch.close()

"""The broker's own directories and sockets, looked after while it runs: what vanishes is made anew, or told.

Temporary directories are tidied, run directories go with a login, and people delete what they do not know. The kernel
tells of it at once (inotify); where it does not, they are looked at now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from replbroker.core.effects import Happened
from replbroker.endpoints import StartError
from replbroker.file_lock import Locked
from replbroker.file_watch import FileWatch
from replbroker.watch.base import Drop, Register

_SETTLE_S = 0.1  # who removes a folder is let finish: what comes into it meanwhile would stop them
_UNTOLD_S, _TOLD_S = 2.0, 15.0  # between two looks, by whether the kernel tells of changes


class OwnPlace(Protocol):
    """Something of the broker's on the file system."""

    directory: str  # to be watched

    def mend(self) -> str | None:
        """Make anew what is gone; what was done, or None where nothing had to be.

        Raises OSError, StartError, and Locked.
        """


class OwnPlaces:
    """All of them. `troubles` gets those that could not be mended."""

    def __init__(
        self, places: Sequence[OwnPlace], complain: Callable[[str], None], troubles: Callable[[list[str]], None]
    ) -> None:
        self._places = places
        self._complain = complain
        self._tell_troubles = troubles
        self._troubles: dict[str, str] = {}
        try:
            self._files: FileWatch | None = FileWatch()
        except OSError:
            self._files = None
        self.due: float | None = time.monotonic()

    def watch(self, register: Register, drop: Drop) -> None:  # noqa: ARG002
        """Have the kernel's word polled."""
        if self._files is not None:
            register(self._files.fd, self._changed)

    def _changed(self) -> None:
        assert self._files is not None
        self._files.changed()
        soon = time.monotonic() + _SETTLE_S
        self.due = soon if self.due is None else min(self.due, soon)

    def happened(self, event: Happened, now: float) -> None:
        """Events are not for this one."""

    def flush(self, now: float) -> None:
        """Look at all of them, if it is time."""
        if self.due is None or now < self.due:
            return
        before = dict(self._troubles)
        for place in self._places:
            self._mend(place)
        watched = [self._files.add(place.directory) for place in self._places] if self._files is not None else [False]
        self.due = now + (_TOLD_S if all(watched) and not self._troubles else _UNTOLD_S)
        if self._troubles != before:
            self._tell_troubles(list(self._troubles.values()))

    def _mend(self, place: OwnPlace) -> None:
        try:
            done = place.mend()
        except Locked as taken:
            self._failed(place, f"{taken}: another broker has taken it; nobody finds this one there")
        except StartError as error:
            self._failed(place, f"{place.directory}: {error}; it cannot be made anew")
        except OSError as error:
            self._failed(
                place, f"{error.filename or place.directory}: {error.strerror or error}; it cannot be made anew"
            )
        else:
            self._troubles.pop(place.directory, None)
            if done is not None:
                self._complain(done)

    def _failed(self, place: OwnPlace, trouble: str) -> None:
        if self._troubles.get(place.directory) != trouble:
            self._complain(trouble)
        self._troubles[place.directory] = trouble

    def close(self) -> None:
        """Look no more."""
        if self._files is not None:
            self._files.close()

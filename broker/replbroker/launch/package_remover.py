"""Removal of installed packages: of closed sessions and dead workers, in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from replbroker.journal_lines import open_sessions
from replworker.boot import delete_packages, set_aside_closed_packages, set_aside_packages

_log = logging.getLogger(__name__)


class PackageRemover:
    """Remover for one state directory; it also deletes what an earlier broker left.

    Args:
        state_dir: The broker's state directory.
        cache_bytes: Size of the installers' cache at which it is emptied.
    """

    def __init__(self, state_dir: str, cache_bytes: int) -> None:
        self._state_dir = state_dir
        self._cache_bytes = cache_bytes
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="package-removal", daemon=True)
        self._thread.start()
        self.on_worker_exit()

    def remove_closed(self) -> None:
        """Remove the packages of sessions that no journal lists as open."""
        self._tasks.put(lambda: set_aside_closed_packages(self._state_dir, lambda path: open_sessions(Path(path))))

    def remove(self, session: str) -> None:
        """Remove the packages of a closed session."""
        self._tasks.put(lambda: set_aside_packages(self._state_dir, session))

    def on_worker_exit(self) -> None:
        """Remove what a dead worker has left."""
        self._tasks.put(lambda: set_aside_packages(self._state_dir))

    def close(self, timeout_s: float) -> None:
        """Remove what dead workers have left, as far as the time allows; the next start removes the rest."""
        self._closing = True
        self.on_worker_exit()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not (self._closing and self._tasks.empty()):
            task = self._tasks.get()
            try:
                task()
                failed = delete_packages(self._state_dir, self._cache_bytes)
            except OSError as error:
                failed = [str(error)]
            for each in failed[:3]:
                _log.warning("installed packages stay until the next start: %s", each)

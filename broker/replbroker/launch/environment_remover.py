"""Removal of named environments: set aside once no worker uses them, deleted from the disk in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from queue import SimpleQueue

from replbroker.launch.launcher import RemovedEnvironment
from replworker.boot import delete_set_aside, has_set_aside, set_aside

_log = logging.getLogger(__name__)


class EnvironmentRemover:
    """Remover for one state directory; it also deletes what an earlier broker left set aside."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._waiting: list[str] = []  # for their last worker to exit
        self._removed: list[RemovedEnvironment] = []
        self._deletions: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if has_set_aside(state_dir):
            self._schedule_deletion()

    def request(self, environment: str, in_use: Collection[str]) -> None:
        """Remove an environment, now or once `on_worker_exit` shows that no worker uses it."""
        self._waiting.append(environment)
        self.on_worker_exit(in_use)

    def on_worker_exit(self, in_use: Collection[str]) -> None:
        """Remove the requested environments that are not among those still in use."""
        for environment in [each for each in self._waiting if each not in in_use]:
            self._waiting.remove(environment)
            try:
                set_aside(self._state_dir, environment)
            except OSError as error:
                self._removed.append(RemovedEnvironment(environment, error.strerror))
            else:
                self._removed.append(RemovedEnvironment(environment))
                self._schedule_deletion()

    def take_removed(self) -> list[RemovedEnvironment]:
        """Return the environments that were removed, or could not be, since the last call."""
        removed, self._removed = self._removed, []
        return removed

    def _schedule_deletion(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_deletions, name="environment-removal", daemon=True)
            self._thread.start()
        self._deletions.put(None)

    def _run_deletions(self) -> None:
        while True:
            self._deletions.get()
            try:
                failed = delete_set_aside(self._state_dir)
            except OSError as error:
                failed = [str(error)]
            for each in failed[:3]:
                _log.warning("part of a removed environment stays until the next start: %s", each)

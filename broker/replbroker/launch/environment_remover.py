"""Removal of named environments: out of sight once no worker runs there, off the disk in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from queue import SimpleQueue

from replbroker.launch.launcher import RemovedEnvironment
from replworker.boot import delete_set_aside, has_set_aside, set_aside


class EnvironmentRemover:
    """Those of one state directory. What an earlier broker did not get to delete is deleted at the start."""

    def __init__(self, state_dir: str, log: Callable[[str], None]) -> None:
        self._state_dir = state_dir
        self._log = log
        self._waiting: list[str] = []  # until their last worker has ended
        self._removed: list[RemovedEnvironment] = []
        self._deletions: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if has_set_aside(state_dir):
            self._schedule_deletion()

    def request(self, environment: str, in_use: Collection[str]) -> None:
        """Remove it, now or as soon as `on_exit` tells that none of the workers is in it."""
        self._waiting.append(environment)
        self.on_worker_exit(in_use)

    def on_worker_exit(self, in_use: Collection[str]) -> None:
        """The workers that are left are in these."""
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
        """What was removed, or could not be, since the last call."""
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
                self._log(f"of a removed environment something is left until the next start: {each}")

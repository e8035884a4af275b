"""What a launcher does. No pid, path or descriptor of a worker is known above this face."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from replbroker.core.effects import WorkerSpec
from replwire.identities import Identity


class ExitedWorker(NamedTuple):
    """A worker is dead."""

    worker: int
    cause: str


class RemovedEnvironment(NamedTuple):
    """A named environment is no longer there, or could not be removed because of `error`."""

    environment: str
    error: str | None = None


class Launcher(Protocol):
    """Starts and kills workers without ever blocking the loop that calls it."""

    def register_descriptors(
        self, register: Callable[[int, Callable[[], None]], None], unregister: Callable[[int], None]
    ) -> None:
        """How to have descriptors polled: `register(fd, when_readable)` and `drop(fd)`."""

    def spawn(self, worker: int, spec: WorkerSpec, token: str) -> None:
        """Start one; it will say hello with this token, or `died` tells that it did not come to that."""

    def kill(self, worker: int) -> None:
        """Kill it and all it started; a no-op for one that is dead or was never known."""

    def set_identities(self, identities: tuple[Identity, ...]) -> None:
        """The config lists these now; workers that are started from here on go by it."""

    def take_exited(self) -> list[ExitedWorker]:
        """Workers that died since the last call, those that were killed left out."""

    def remove_environment(self, environment: str) -> None:
        """Remove a named environment once every worker in it is dead; `removed` tells."""

    def take_removed_environments(self) -> list[RemovedEnvironment]:
        """Environments that were removed, or could not be, since the last call."""

    def reap_orphans(self) -> None:
        """Bury what dead workers left behind; called when a child of the broker has ended."""

    def close(self, deadline_s: float) -> None:
        """Kill everything and wait, up to this long, until it is gone."""

"""Interface of launchers. No pid, path or descriptor of a worker is known above it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from replbroker.core.effects import WorkerSpec
from replbroker.loop_parts import DescriptorSource
from replwire.identities import Identity
from replwire.network import HostLists, TrafficRecord


class ExitedWorker(NamedTuple):
    """A worker that has exited.

    Attributes:
        worker: Number of the worker.
        cause: Why, as a clause.
    """

    worker: int
    cause: str


class StartedWorker(NamedTuple):
    """A worker that was started.

    Attributes:
        worker: Number of the worker.
        handle: Its durable id, for `Launcher.adopt` of a later broker.
    """

    worker: int
    handle: str


class RemovedEnvironment(NamedTuple):
    """A named environment that was removed, or that could not be because of `error`."""

    environment: str
    error: str | None = None


class Launcher(DescriptorSource, Protocol):
    """Starts and kills workers, without ever blocking the loop that calls it."""

    def spawn(self, worker: int, spec: WorkerSpec, token: str) -> None:
        """Start a worker.

        Args:
            worker: Number of the worker.
            spec: Runtime, environment and sandbox of the worker.
            token: What the worker identifies itself with when it connects; `take_exited` reports one that exits
                before.
        """

    def kill(self, worker: int) -> None:
        """Kill a worker and every process it started; do nothing for one that has exited or is unknown."""

    def take_traffic(self) -> list[TrafficRecord]:
        """Return what sessions have reached, or were refused, since the last call."""

    def set_hosts(self, hosts: HostLists) -> None:
        """Set the lists of hosts, for workers that are started from now on."""

    def set_identities(self, identities: tuple[Identity, ...]) -> None:
        """Set the configured identities, for workers that are started from now on."""

    def adopt(self, worker: int, handle: str, *, keep: bool) -> bool:
        """Take over a worker that an earlier broker has started.

        Args:
            worker: Its number from now on.
            handle: Its durable id.
            keep: Whether it goes on; otherwise it is killed.

        Returns:
            Whether it lives, and goes on. `take_exited` reports its death from now on.
        """

    def release(self, workers: Iterable[int]) -> None:
        """Leave these workers alive in `close`, for a later broker."""

    def take_started(self) -> list[StartedWorker]:
        """Return the workers that were started since the last call."""

    def take_exited(self) -> list[ExitedWorker]:
        """Return the workers that have exited since the last call, except those that were killed."""

    def remove_environment(self, environment: str) -> None:
        """Remove a named environment once every worker in it has exited; `take_removed_environments` reports it."""

    def start_egress(self) -> None:
        """Start the egress proxy, if none runs."""

    def remove_packages(self, session: str) -> None:
        """Remove the packages that a closed session had installed, in the background."""

    def remove_closed_packages(self) -> None:
        """Remove the packages of sessions that no journal lists as open, in the background."""

    def remove_stored(self, used: Collection[str]) -> None:
        """Remove files with the variables of hibernated sessions that no session uses."""

    def take_removed_environments(self) -> list[RemovedEnvironment]:
        """Return the environments that were removed, or could not be, since the last call."""

    def reap_orphans(self) -> None:
        """Kill and reap orphan processes of dead workers; called when a child of the broker has exited."""

    def close(self) -> None:
        """Kill everything that was not released, and wait until it is dead, within a few seconds."""

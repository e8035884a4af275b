"""Sandboxes for workers: probed once at the start, requested for each worker, cleaned up after dead ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

import replbroker
import replwire
from replbroker.core.effects import WorkerSpec
from replbroker.core.sessions.sandbox_status import SandboxStatus
from replwire.config import SandboxSection
from replwire.network import HostLists
from replwire.policy import Policy, SandboxOverrides, apply_overrides, is_within
from replworker.sandbox.cgroup import CgroupRoot, remove_orphans
from replworker.sandbox.identity import UIDS
from replworker.sandbox.machine import Machine, detect_machine
from replworker.sandbox.prepare import SANDBOX_INIT
from replworker.sandbox.probe import probe
from replworker.session_sandbox import SandboxRequest

_SLOTS = 900  # host users for the sessions of a root broker, in turn
_decode = msgspec.json.Decoder(SandboxOverrides).decode


class UidSlots:
    """Host users of live workers, one for each worker as long as there are enough.

    Args:
        count: Number of slots, at most `UIDS`.
        first: Number of the first slot; brokers of one machine begin with different ones.
    """

    def __init__(self, count: int = _SLOTS, first: int = 0) -> None:
        self._first = first
        self._count = count
        self._slots: dict[int, int] = {}

    def acquire(self, worker: int) -> int:
        """Return a slot that no other worker has; round-robin, so a freed uid is not reused immediately."""
        taken = set(self._slots.values())
        turn = [(self._first + number % self._count) % UIDS for number in range(worker, worker + self._count)]
        self._slots[worker] = slot = next((each for each in turn if each not in taken), turn[0])
        return slot

    def take(self, worker: int, slot: int) -> None:
        """Note the slot that a worker of an earlier broker has."""
        self._slots[worker] = slot

    def release(self, worker: int) -> None:
        """Free the slot of a worker that is dead, with every process it started."""
        self._slots.pop(worker, None)


class SandboxProvider:
    """Sandboxes that this machine can provide for the policy of the settings.

    Args:
        section: The section `[sandbox]`.
        python: The interpreter that the probe runs.
        env: Environment variables that sessions inherit.
        hidden: Paths that no session may see.
        protected: Paths that no session may write, beside the broker's own code.

    Attributes:
        summary: Result of the probe, for the core.
    """

    def __init__(
        self,
        section: SandboxSection,
        python: str,
        env: dict[str, str],
        hidden: Iterable[str],
        protected: Iterable[str] = (),
    ) -> None:
        self._machine: Machine | None = None
        self._policy: Policy | None = None
        self._slots = UidSlots(first=os.getpid() * 7)
        self._groups: dict[int, CgroupRoot] = {}  # of workers that an earlier broker has started
        if section.profile == "off":
            problem = None if section.allow_unsandboxed else "profile is off, and allow-unsandboxed is not set"
            self.summary = SandboxStatus(problem=problem)
            return
        policy = section.policy()
        policy = msgspec.structs.replace(
            policy,
            hidden_paths=[*policy.hidden_paths, *map(os.path.realpath, hidden)],
            protected_paths=[*policy.protected_paths, *_broker_code_paths(), *_with_real_paths(protected)],
        )
        machine = detect_machine()
        report = probe(policy, machine, python, env)
        missing = tuple(str(gap.layer) for gap in report.missing)
        if not report.ok:
            self.summary = SandboxStatus(problem=None if section.allow_unsandboxed else report.text(), missing=missing)
            return
        self._machine, self._policy = machine, policy
        remove_orphans(machine.cgroups)
        self.summary = SandboxStatus(
            policy=policy,
            layers=tuple(name for name, held in report.layers.items() if held),
            missing=missing,
            can_hot_mount=report.layers.get("late-workspace", False),
        )

    def request_for(self, worker: int, spec: WorkerSpec) -> SandboxRequest | None:
        """Return the sandbox to request for a worker, None without sandboxes."""
        if self._policy is None or self._machine is None:
            return None
        policy = self._policy
        if spec.sandbox_overrides is not None:
            policy = apply_overrides(policy, _decode(spec.sandbox_overrides))
        return SandboxRequest(policy, self._machine, self._slots.acquire(worker), spec.workspace)

    def adopt(self, worker: int, slot: int, version: int, directories: dict[str, str]) -> None:
        """Note the sandbox of a worker that an earlier broker has started.

        Args:
            worker: Number of the worker.
            slot: Number of its host user.
            version: Version of the control groups.
            directories: Where its group is, by controller.
        """
        self._slots.take(worker, slot)
        self._groups[worker] = CgroupRoot(version, directories, None)

    @staticmethod
    def remove_groups(version: int, directories: dict[str, str]) -> None:
        """Remove the control groups of dead workers in the directories of an earlier broker."""
        remove_orphans(CgroupRoot(version, directories, None))

    @property
    def cgroups(self) -> CgroupRoot:
        """The control groups in which those of sandboxes are created."""
        return CgroupRoot() if self._machine is None else self._machine.cgroups

    def has_list(self, spec: WorkerSpec) -> bool:
        """Return whether a worker's sandbox may reach listed hosts."""
        if self._policy is None or self._policy.network == "none":
            return False
        overrides = SandboxOverrides() if spec.sandbox_overrides is None else _decode(spec.sandbox_overrides)
        return (overrides.network or self._policy.network) == "list"

    def set_hosts(self, hosts: HostLists) -> None:
        """Replace the lists of hosts, for workers that are started from now on."""
        if self._policy is not None:
            self._policy = msgspec.structs.replace(self._policy, **hosts._asdict())

    def release(self, worker: int) -> CgroupRoot | None:
        """Release the slot of a dead worker; return where its control group is, if an earlier broker has created it."""
        self._slots.release(worker)
        return self._groups.pop(worker, None)

    def remove_dead_groups(self, earlier: CgroupRoot | None = None) -> None:
        """Remove control groups that dead workers could not remove themselves, from any thread.

        Args:
            earlier: Where to look besides.
        """
        if earlier is not None:
            remove_orphans(earlier)
        remove_orphans(self.cgroups)


def _broker_code_paths() -> list[str]:
    """Return the paths of the broker's Python and packages: what a session wrote there would run as the broker."""
    packages = (
        Path(str(replwire.__file__)).parents[1],
        Path(str(replbroker.__file__)).parents[1],
        Path(SANDBOX_INIT).parents[2],
    )
    places = (sys.prefix, sys.base_prefix, *map(str, packages))
    return [path for path in _with_real_paths(places) if not is_within(path, ["/usr"])]


def _with_real_paths(paths: Iterable[str]) -> list[str]:
    """Return absolute and real paths: a symlink on the way could be replaced."""
    return list(dict.fromkeys(each for path in paths for each in (os.path.abspath(path), os.path.realpath(path))))

"""The sandbox as the launcher knows it: probed once at the start, handed to each worker, tidied up behind dead ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

import replbroker
import replwire
from replbroker.core.effects import Spec
from replbroker.core.sandbox import Sandbox
from replwire.config import SandboxSection
from replwire.policy import Policy, Tighter, tighten, within
from replworker.confine.cgroup import sweep
from replworker.confine.machine import Machine, look
from replworker.confine.prepare import INNER
from replworker.confine.probe import probe
from replworker.confinement import Confine

_SLOTS = 900  # host users that sessions of a root broker are given, in turn
_decode = msgspec.json.Decoder(Tighter).decode


class Slots:
    """Host users for the workers that live, each one's own as long as there are enough."""

    def __init__(self, most: int = _SLOTS) -> None:
        self._most = most
        self._taken: dict[int, int] = {}

    def take(self, worker: int) -> int:
        """One that no other has. They go round, so that what was just given back rests."""
        taken = set(self._taken.values())
        turn = (number % self._most for number in range(worker, worker + self._most))
        self._taken[worker] = slot = next((each for each in turn if each not in taken), worker % self._most)
        return slot

    def give_back(self, worker: int) -> None:
        """It is dead, and so is all that it started."""
        self._taken.pop(worker, None)


class Probed:
    """What this machine can do for the policy of the config. `hidden` are paths that no session is to see,
    `protected` those that none is to write, beside the broker's own code."""

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
        self._slots = Slots()
        if section.profile == "off":
            trouble = None if section.allow_unsandboxed else "profile is off, and allow-unsandboxed is not set"
            self.core = Sandbox(trouble=trouble)
            return
        policy = section.policy()
        policy = msgspec.structs.replace(
            policy,
            hidden_paths=[*policy.hidden_paths, *map(os.path.realpath, hidden)],
            protected_paths=[*policy.protected_paths, *_own_code(), *_both(protected)],
        )
        machine = look()
        report = probe(policy, machine, python, env)
        missing = tuple(str(gap.layer) for gap in report.missing)
        if not report.ok:
            self.core = Sandbox(trouble=None if section.allow_unsandboxed else report.text(), missing=missing)
            return
        self._machine, self._policy = machine, policy
        sweep(machine.cgroups)
        self.core = Sandbox(
            policy=policy,
            layers=tuple(name for name, held in report.layers.items() if held),
            missing=missing,
            late_folders=report.layers.get("late-workspace", False),
        )

    def for_worker(self, worker: int, spec: Spec) -> Confine | None:
        """What a worker is told."""
        if self._policy is None or self._machine is None:
            return None
        policy = self._policy if spec.tighter is None else tighten(self._policy, _decode(spec.tighter))
        return Confine(policy, self._machine, os.getpid() * 7 + self._slots.take(worker), spec.folder)

    def bury(self, worker: int) -> None:
        """Take away what a dead worker could not."""
        self._slots.give_back(worker)
        if self._machine is not None:
            sweep(self._machine.cgroups)


def _own_code() -> list[str]:
    """Where the broker's python and packages lie: what a session wrote there would run as the broker."""
    packages = (
        Path(str(replwire.__file__)).parents[1],
        Path(str(replbroker.__file__)).parents[1],
        Path(INNER).parents[2],
    )
    places = (sys.prefix, sys.base_prefix, *map(str, packages))
    return [path for path in _both(places) if not within(path, ["/usr"])]


def _both(paths: Iterable[str]) -> list[str]:
    """As they are named and as they are: a symlink that leads there could be replaced."""
    return list(dict.fromkeys(each for path in paths for each in (os.path.abspath(path), os.path.realpath(path))))

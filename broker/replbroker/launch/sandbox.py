"""The sandbox as the launcher knows it: probed once at the start, handed to each worker, tidied up behind dead ones."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from replbroker.core.effects import Spec
from replbroker.core.sandbox import Sandbox
from replwire.config import SandboxSection
from replwire.policy import Policy, Tighter, tighten
from replworker.confine.cgroup import sweep
from replworker.confine.machine import Machine, look
from replworker.confine.probe import probe
from replworker.confinement import Confine

_SLOTS = 900  # host users that sessions of a root broker are given, in turn
_decode = msgspec.json.Decoder(Tighter).decode


class Probed:
    """What this machine can do for the policy of the config. `hidden` are paths that no session is to see."""

    def __init__(self, section: SandboxSection, python: str, env: dict[str, str], hidden: Sequence[str]) -> None:
        self._machine: Machine | None = None
        self._policy: Policy | None = None
        if section.profile == "off":
            trouble = None if section.allow_unsandboxed else "profile is off, and allow-unsandboxed is not set"
            self.core = Sandbox(trouble=trouble)
            return
        policy = section.policy()
        policy = msgspec.structs.replace(policy, hidden_paths=[*policy.hidden_paths, *map(os.path.realpath, hidden)])
        machine = look()
        report = probe(policy, machine, python, env)
        missing = tuple(str(gap.layer) for gap in report.missing)
        if not report.ok:
            self.core = Sandbox(trouble=None if section.allow_unsandboxed else report.text(), missing=missing)
            return
        self._machine, self._policy = machine, policy
        sweep(machine.cgroups)
        self.core = Sandbox(
            policy=policy, layers=tuple(name for name, held in report.layers.items() if held), missing=missing,
            late_folders=report.layers.get("late-workspace", False),
        )  # fmt: skip

    def for_worker(self, worker: int, spec: Spec) -> Confine | None:
        """What a worker is told."""
        if self._policy is None or self._machine is None:
            return None
        policy = self._policy if spec.tighter is None else tighten(self._policy, _decode(spec.tighter))
        return Confine(policy, self._machine, os.getpid() * 7 + worker % _SLOTS, spec.folder)

    def sweep(self) -> None:
        """Take away what a dead worker could not."""
        if self._machine is not None:
            sweep(self._machine.cgroups)

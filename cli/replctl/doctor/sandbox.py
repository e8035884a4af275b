"""The sandbox: what this machine has for it, and what a canary inside observed. As a broker does it at its start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import msgspec

from replctl.doctor.finding import Finding, Level, ok, warn
from replwire.config import SandboxSection
from replworker.sandbox.machine import Machine, detect_machine
from replworker.sandbox.probe import detect_host_settings, probe
from replworker.sandbox.report import HostSettings, SandboxReport

_BWRAP = "apt-get install bubblewrap, or dnf install bubblewrap (0.7 or later)"
_LANDLOCK = "Linux 5.13 or later with `landlock` in the lsm= boot parameter"
_DELEGATE = "run the broker as a service with Delegate=yes (systemd), or as root"
_OF_NAMESPACES = ("namespace", "/proc is masked", "bubblewrap")  # in what a probe says of its failure
_IN_UNIT = "in a systemd unit: neither ProtectKernelTunables= nor ProtectKernelLogs= nor ProcSubset="
_BOUNDS = ("memory", "pids", "cpu")
_PROFILE_FIX = "set sandbox.profile, or allow-unsandboxed = true if sessions are to run without"


def sandbox(section: SandboxSection, state_dir: str, env: dict[str, str]) -> list[Finding]:
    """All checks of it. Takes about 0.2 s, and no longer than a broker's start.

    The canary leaves nothing: its folder in TMPDIR and its control group go with it.
    """
    if section.profile == "off":
        return [_check_profile_off(section)]
    policy = section.policy()
    policy = msgspec.structs.replace(policy, hidden_paths=[*policy.hidden_paths, os.path.realpath(state_dir)])
    machine = detect_machine()
    report = probe(policy, machine, sys.executable, env)
    level: Level = "warn" if section.allow_unsandboxed else "fail"
    return [*judge(machine, report, detect_host_settings(), level), *_check_allow_unsandboxed(section)]


def judge(machine: Machine, report: SandboxReport, host: HostSettings, level: Level) -> Iterator[Finding]:
    """What was seen, part by part. `level` is that of a sandbox that cannot be had."""
    yield bubblewrap(machine, level)
    yield namespaces(machine, report, host, level)
    yield landlock(machine, report)
    yield cgroups(machine, report)
    yield layers(report, level)


def bubblewrap(machine: Machine, level: Level) -> Finding:
    """The program that makes the sandbox."""
    if machine.bwrap is None:
        return Finding("bubblewrap", level, machine.bwrap_problem or "none", "no sandbox can be made", _BWRAP)
    return ok("bubblewrap", f"{'.'.join(map(str, machine.bwrap_version))} at {machine.bwrap}")


def namespaces(machine: Machine, report: SandboxReport, host: HostSettings, level: Level) -> Finding:
    """Whether they can be made: the canary was in some. What the kernel's settings say counts when it never came in."""
    if report.layers:
        return ok("namespaces", "made: a canary was inside of them")
    if machine.bwrap is None:
        off = [
            name
            for name, value in (
                ("user.max_user_namespaces", host.max_user_namespaces),
                ("kernel.unprivileged_userns_clone", host.unprivileged_userns_clone),
            )
            if value == 0
        ]
        if off:
            cause = "user namespaces are off"
            return Finding(
                "namespaces", level, f"{off[0]} is 0", cause, f"sysctl {off[0]}={10000 if 'max' in off[0] else 1}"
            )
        return warn("namespaces", "not tried", "there is no bubblewrap to try them with", _BWRAP)
    gap = report.missing[0]
    if not any(word in gap.cause for word in _OF_NAMESPACES):
        return warn("namespaces", "not tried", f"a canary was not started: {gap.cause}", gap.fix or "see its message")
    in_unit = f"; {_IN_UNIT}" if "/proc" in gap.cause else ""
    mend = (gap.fix or "see its message") + in_unit
    return Finding("namespaces", level, "a canary did not get into any", gap.cause, mend)


def landlock(machine: Machine, report: SandboxReport) -> Finding:
    """A layer beside the mounts."""
    if not machine.landlock_abi:
        return warn("landlock", "the kernel has none", "mounts alone hold a descriptor that leads outside", _LANDLOCK)
    if report.layers.get("landlock") is False:
        return warn("landlock", f"version {machine.landlock_abi}", "it did not stop a walk out", _LANDLOCK)
    return ok("landlock", f"version {machine.landlock_abi}")


def cgroups(machine: Machine, report: SandboxReport) -> Finding:
    """What bounds all of a session's processes together."""
    home = machine.cgroups
    lacking = [name for name in _BOUNDS if report.layers.get(name, name in home.folders) is False]
    if not lacking:
        return ok("cgroups", f"version {home.version}: {', '.join(sorted(home.folders))}")
    cause = f"nothing bounds {', '.join(lacking)} of a session's processes together"
    return warn("cgroups", home.problem or f"not usable: {', '.join(lacking)}", cause, _DELEGATE)


def layers(report: SandboxReport, level: Level) -> Finding:
    """What sessions would be promised."""
    held = [name for name, seen in report.layers.items() if seen]
    if report.ok:
        lost = [gap for gap in report.missing if gap.layer == "late-workspace"]
        if lost:
            return warn(
                "sandbox",
                f"{len(held)} layers; late-workspace: {lost[0].cause}",
                "sessions with a folder start cold, in 0.1 s and not from the pool",
                lost[0].fix,
            )
        return ok("sandbox", f"{len(held)} of {len(report.layers)} layers were observed")
    without = "sessions run unsandboxed, as the config allows" if level == "warn" else "no session is opened"
    mends = dict.fromkeys(gap.fix for gap in report.missing_required if gap.fix)
    seen = "; ".join(f"{gap.layer}: {gap.cause}" for gap in report.missing_required)
    return Finding("sandbox", level, seen, without, "; ".join(mends) or "see docs/security.md")


def _check_profile_off(section: SandboxSection) -> Finding:
    if section.allow_unsandboxed:
        return warn("sandbox", "profile is off", "sessions can do what the broker's user can", "set sandbox.profile")
    return Finding(
        "sandbox", "fail", "profile is off", "and allow-unsandboxed is not set: no session is opened", _PROFILE_FIX
    )


def _check_allow_unsandboxed(section: SandboxSection) -> Iterator[Finding]:
    if section.allow_unsandboxed:
        cause = "when the sandbox fails one day, sessions run without one instead of being refused"
        yield warn(
            "sandbox", "allow-unsandboxed is true", cause, "take sandbox.allow-unsandboxed out of the config file"
        )

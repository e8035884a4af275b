"""Checks of the sandbox: prerequisites, and a self-test as at a broker's start."""

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
_OF_NAMESPACES = ("namespace", "/proc is masked", "bubblewrap")  # words in the cause of a failed self-test
_IN_UNIT = "in a systemd unit: neither ProtectKernelTunables= nor ProtectKernelLogs= nor ProcSubset="
_BOUNDS = ("memory", "pids", "cpu")
_PROFILE_FIX = "set sandbox.profile, or allow-unsandboxed = true if sessions may run without a sandbox"


def sandbox(section: SandboxSection, state_dir: str, env: dict[str, str]) -> list[Finding]:
    """Run all sandbox checks, in about 0.2 s.

    The self-test leaves nothing behind: its directory in TMPDIR and its control group are deleted.
    """
    if section.profile == "off":
        return [_check_profile_off(section)]
    policy = section.policy()
    policy = msgspec.structs.replace(policy, hidden_paths=[*policy.hidden_paths, os.path.realpath(state_dir)])
    machine = detect_machine()
    report = probe(policy, machine, sys.executable, env)
    level: Level = "warn" if section.allow_unsandboxed else "fail"
    return [*check_layers(machine, report, detect_host_settings(), level), *_check_allow_unsandboxed(section)]


def check_layers(machine: Machine, report: SandboxReport, host: HostSettings, level: Level) -> Iterator[Finding]:
    """Yield findings for each part. `level` is the level of an unavailable sandbox."""
    yield bubblewrap(machine, level)
    yield namespaces(machine, report, host, level)
    yield landlock(machine, report)
    yield cgroups(machine, report)
    yield layers(report, level)


def bubblewrap(machine: Machine, level: Level) -> Finding:
    """Check bubblewrap, the program that creates the sandbox."""
    if machine.bwrap is None:
        return Finding("bubblewrap", level, machine.bwrap_problem or "none", "sandboxing is not possible", _BWRAP)
    return ok("bubblewrap", f"{'.'.join(map(str, machine.bwrap_version))} at {machine.bwrap}")


def namespaces(machine: Machine, report: SandboxReport, host: HostSettings, level: Level) -> Finding:
    """Check namespaces: the self-test ran in some. Kernel settings count only if it did not."""
    if report.layers:
        return ok("namespaces", "the self-test ran inside them")
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
        return warn("namespaces", "not tried", "bubblewrap is missing", _BWRAP)
    gap = report.missing[0]
    if not any(word in gap.cause for word in _OF_NAMESPACES):
        return warn(
            "namespaces", "not tried", f"the self-test could not start: {gap.cause}", gap.fix or "see the message"
        )
    in_unit = f"; {_IN_UNIT}" if "/proc" in gap.cause else ""
    fix = (gap.fix or "see the message") + in_unit
    return Finding("namespaces", level, "the self-test could not enter any", gap.cause, fix)


def landlock(machine: Machine, report: SandboxReport) -> Finding:
    """Check Landlock, the layer beside the mounts."""
    if not machine.landlock_abi:
        return warn(
            "landlock", "the kernel has none", "only mounts protect against descriptors that lead outside", _LANDLOCK
        )
    if report.layers.get("landlock") is False:
        return warn("landlock", f"version {machine.landlock_abi}", "it did not prevent an escape", _LANDLOCK)
    return ok("landlock", f"version {machine.landlock_abi}")


def cgroups(machine: Machine, report: SandboxReport) -> Finding:
    """Check control groups, which limit all processes of a session together."""
    home = machine.cgroups
    lacking = [name for name in _BOUNDS if report.layers.get(name, name in home.directories) is False]
    if not lacking:
        return ok("cgroups", f"version {home.version}: {', '.join(sorted(home.directories))}")
    cause = f"nothing limits {', '.join(lacking)} of all of a session's processes together"
    return warn("cgroups", home.problem or f"not usable: {', '.join(lacking)}", cause, _DELEGATE)


def layers(report: SandboxReport, level: Level) -> Finding:
    """Check the layers that sessions would get."""
    held = [name for name, seen in report.layers.items() if seen]
    if report.ok:
        lost = [gap for gap in report.missing if gap.layer == "late-workspace"]
        if lost:
            return warn(
                "sandbox",
                f"{len(held)} layers; late-workspace: {lost[0].cause}",
                "sessions with a directory start without a warm worker, in 0.1 s",
                lost[0].fix,
            )
        return ok("sandbox", f"{len(held)} of {len(report.layers)} layers passed the self-test")
    without = "sessions run without a sandbox, as the config allows" if level == "warn" else "no session can be opened"
    fixes = dict.fromkeys(gap.fix for gap in report.missing_required if gap.fix)
    seen = "; ".join(f"{gap.layer}: {gap.cause}" for gap in report.missing_required)
    return Finding("sandbox", level, seen, without, "; ".join(fixes) or "see docs/security.md")


def _check_profile_off(section: SandboxSection) -> Finding:
    if section.allow_unsandboxed:
        return warn("sandbox", "profile is off", "sessions can do what the broker's user can", "set sandbox.profile")
    return Finding(
        "sandbox", "fail", "profile is off", "and allow-unsandboxed is not set: no session can be opened", _PROFILE_FIX
    )


def _check_allow_unsandboxed(section: SandboxSection) -> Iterator[Finding]:
    if section.allow_unsandboxed:
        cause = "if the sandbox ever fails, sessions run without one instead of being refused"
        yield warn(
            "sandbox", "allow-unsandboxed is true", cause, "remove sandbox.allow-unsandboxed from the config file"
        )

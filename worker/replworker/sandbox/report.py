"""Sandbox report: from self-test results to layers, and from bubblewrap errors to fixes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from replwire.policy import Policy

# Purpose of each layer, in display order.
LAYERS = {
    "mounts": "host files are absent unless granted, and read-only unless granted for writing",
    "workspace": "the session's directory can be mounted, with the profile's rights only",
    "late-workspace": "the directory can be mounted into a warm interpreter; else such sessions start cold",
    "processes": "outside processes cannot be seen, signalled or traced; all inside die with the session",
    "network": "no addresses, not even localhost of the host; with a list, only what the egress proxy reaches",
    "ipc": "separate shared memory, message queues and host name",
    "sockets": "sockets of other programs are unreachable, by path and by abstract name",
    "user": "not the host's root, and no new user namespaces",
    "capabilities": "none, and none can be gained",
    "no-new-privileges": "set-user-id programs gain nothing",
    "seccomp": "kernel interfaces that REPL code does not need are denied",
    "landlock": "descriptors cannot be used to leave the mounted tree",
    "environment": "no environment variables of the broker",
    "limits": "limits on file size, /tmp, open files and processes",
    "memory": "a limit on the memory of all processes together",
    "pids": "a limit on the number of processes of the session",
    "cpu": "a limit on the share of the processors",
}
REQUIRED = (
    "mounts",
    "workspace",
    "processes",
    "network",
    "ipc",
    "sockets",
    "user",
    "capabilities",
    "no-new-privileges",
    "seccomp",
    "environment",
    "limits",
)
_SET_INSIDE = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"})  # by bubblewrap, shells and Python


@dataclass(frozen=True, slots=True)
class MissingLayer:
    """A layer that does not hold: cause and fix."""

    layer: str
    cause: str
    fix: str


@dataclass(frozen=True, slots=True)
class SandboxReport:
    """Result of a probe. `layers` says for each layer of the policy if it holds."""

    layers: dict[str, bool] = field(default_factory=dict)
    missing: list[MissingLayer] = field(default_factory=list)
    required: tuple[str, ...] = REQUIRED

    @property
    def missing_required(self) -> list[MissingLayer]:
        """Required layers that do not hold. If empty, sessions may be promised this sandbox."""
        return [missing for missing in self.missing if missing.layer in self.required]

    @property
    def ok(self) -> bool:
        """True if sessions may be promised this sandbox."""
        return bool(self.layers) and not self.missing_required

    def text(self) -> str:
        """Return causes and fixes as text for `sandbox-unavailable`."""
        return "; ".join(
            f"{gap.layer}: {gap.cause} ({gap.fix})" if gap.fix else f"{gap.layer}: {gap.cause}"
            for gap in self.missing_required
        )


@dataclass(frozen=True, slots=True)
class HostObservation:
    """Observations of the sandbox from the host."""

    uid: int
    namespaces: dict[str, str]  # the host's own
    grouped: frozenset[str]  # controllers in whose group the self-test was
    late_error: str | None  # why the workspace could not be mounted while it ran
    group_problem: str | None
    landlock_abi: int
    variables: frozenset[str]  # it was given


def evaluate(
    policy: Policy, seen: dict[str, Any], outside: HostObservation, required: tuple[str, ...] = REQUIRED
) -> SandboxReport:
    """Evaluate which layers hold.

    Raises:
        KeyError: the self-test's answer is incomplete
        TypeError: the answer has a value of the wrong type
        ValueError: the answer has an unknown value
    """
    held = _layers_that_hold(policy, seen, outside)
    missing = [
        MissingLayer(layer, *_cause_and_fix(layer, seen, outside))
        for layer in LAYERS
        if layer in held and not held[layer]
    ]
    return SandboxReport({layer: held[layer] for layer in LAYERS if layer in held}, missing, required)


def failed_report(cause: str, fix: str, required: tuple[str, ...] = REQUIRED) -> SandboxReport:
    """Return a report without any observed layer."""
    return SandboxReport({}, [MissingLayer("sandbox", cause, fix)], (*required, "sandbox"))


def _layers_that_hold(policy: Policy, seen: dict[str, Any], outside: HostObservation) -> dict[str, bool]:
    status, limits = seen["status"], policy.limits
    apart = {name: seen["namespaces"][name] != host for name, host in outside.namespaces.items()}
    no_caps = all(int(status[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapBnd"))
    asked = {"open-files": limits.open_files, "file-bytes": limits.file_bytes, "pids": limits.pids}
    writable = policy.profile == "workspace-write"
    held = {
        "mounts": apart["mnt"] and "done" not in (seen["secret"], seen["outside"], seen["root"], seen["sysctl"]),
        "late-workspace": outside.late_error is None,
        "workspace": (seen["workspace"] == "done") is writable,
        "processes": apart["pid"] and seen["signal"] != "done",
        "ipc": apart["ipc"] and apart["uts"],
        "sockets": "done" not in (seen["abstract"], seen["path-socket"], seen["vsock"]),
        "user": outside.uid != 0 and seen["userns"] != "done",
        "capabilities": no_caps,
        "no-new-privileges": status["NoNewPrivs"] == "1",
        "seccomp": status["Seccomp"] == "2" and seen["io-uring"] == "EPERM" and seen["vsock"] == "EAFNOSUPPORT",
        "environment": set(seen["variables"]) <= outside.variables | _SET_INSIDE,
        "limits": all(0 <= seen["limits"][name] <= most for name, most in asked.items())
        and seen["tmp"] <= max(limits.tmp_bytes, 4096) * 2,
        "memory": "memory" in outside.grouped,
        "pids": "pids" in outside.grouped,
        "cpu": "cpu" in outside.grouped,
    }
    if policy.read == "minimal":  # otherwise the host's root is visible anyway
        held["landlock"] = seen["walk"] != "done"
    if policy.network != "host":
        held["network"] = apart["net"] and seen["tcp"] != "done"
    return held


def _cause_and_fix(layer: str, seen: dict[str, Any], outside: HostObservation) -> tuple[str, str]:
    if layer in ("memory", "pids", "cpu"):
        problem = outside.group_problem or f"the {layer} controller cannot be used here"
        return problem, "run the broker as a service with Delegate=yes (systemd), or as root"
    if layer == "landlock":
        why = "the kernel has no Landlock" if not outside.landlock_abi else "it did not prevent leaving the tree"
        return why, "Linux 5.13 or later with `landlock` in the lsm= boot parameter"
    if layer in ("workspace", "late-workspace") and outside.late_error:
        return outside.late_error, _fix_for_workspace(outside.late_error)
    return "the self-test bypassed it", f"report this: {seen}"


def _fix_for_workspace(error: str) -> str:
    if "mount_setattr" in error:
        return "this file system cannot map owners: run the broker as the owner of its workspaces"
    return "allow the broker's user to create user namespaces"


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Host settings that forbid user namespaces. None: the setting does not exist."""

    max_user_namespaces: int | None = None
    unprivileged_userns_clone: int | None = None
    apparmor_restricts: int | None = None
    container: str | None = None


def explain_failure(error: str, host: HostSettings) -> tuple[str, str]:
    """Explain a bubblewrap error: cause and fix on this host."""
    message = error.strip().splitlines()[-1] if error.strip() else "no message"
    if "Unknown option" in message:
        return f"bubblewrap is too old: {message}", "install version 0.7 or later"
    if "Can't mount proc" in message:
        return f"/proc is masked: {message}", "in docker: --security-opt systempaths=unconfined"
    if host.apparmor_restricts and (
        "uid map" in message or "Permission denied" in message or "not permitted" in message
    ):
        return (
            f"AppArmor strips user namespaces: {message}",
            "load a profile for bwrap that allows userns, or sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        )
    if host.unprivileged_userns_clone == 0:
        return f"user namespaces are off: {message}", "sysctl kernel.unprivileged_userns_clone=1"
    if host.max_user_namespaces == 0:
        return f"user namespaces are off: {message}", "sysctl user.max_user_namespaces=10000"
    if "namespace" in message or "not permitted" in message:
        if host.container:
            return (
                f"this is a {host.container} container, and it forbids namespaces: {message}",
                "docker or podman: --security-opt seccomp=unconfined --security-opt apparmor=unconfined",
            )
        return f"namespaces are forbidden here: {message}", "allow unprivileged user namespaces for the broker's user"
    return f"bubblewrap could not start: {message}", "see its message"

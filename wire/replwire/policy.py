"""Sandbox policy of a session, and the rule that requests may only tighten it.

No I/O. Paths are compared as text, so code that mounts one must not follow symlinks created after the check
(`replworker.sandbox.mounts` does not).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, field

from replwire.documented import documented
from replwire.limits import KIB, MIB
from replwire.network import MAX_HOSTS, NetworkRules, check_lists, find_uncovered
from replwire.protected import PROTECTED as PROTECTED

Profile = Literal["read-only", "workspace-write", "off"]
Network = Literal["none", "list", "host"]
Read = Literal["minimal", "host"]
Checkpoints = Literal["auto", "manual", "off"]

MAX_PATHS = 64


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    pass


class SandboxLimits(_Strict, frozen=True, kw_only=True):
    """Resource limits of one sandboxed session. None of them can be switched off."""

    memory_bytes: Annotated[
        int, documented("memory of all its processes together, including /tmp", "bytes", 64 * MIB, 1024 * 1024 * MIB)
    ] = 1024 * MIB
    pids: Annotated[int, documented("processes and threads at once", "processes", 8, 100_000)] = 256
    cpu_percent: Annotated[int, documented("CPU share; 100 is one core", "percent", 1, 100_000)] = 100
    file_bytes: Annotated[int, documented("size of a file it writes", "bytes", 64 * KIB, 1024 * 1024 * MIB)] = 256 * MIB
    open_files: Annotated[
        int, documented("descriptors per process; Bash uses its own just below 253", "files", 256, 1_000_000)
    ] = 256
    tmp_bytes: Annotated[
        int, documented("all files in /tmp, and separately in /dev/shm", "bytes", 64 * KIB, 1024 * 1024 * MIB)
    ] = 64 * MIB
    network_connections: Annotated[int, documented("connections at once to listed hosts", "connections", 1, 10_000)] = (
        256
    )
    network_bytes: Annotated[
        int, documented("bytes sent to and received from listed hosts until a reset", "bytes", 64 * KIB, 1 << 50)
    ] = 1 << 40


_Hosts = Annotated[list[Annotated[str, Meta(min_length=1, max_length=262)]], Meta(max_length=MAX_HOSTS)]
_Paths = Annotated[list[Annotated[str, Meta(min_length=1, max_length=4095)]], Meta(max_length=MAX_PATHS)]


class Policy(_Strict, frozen=True, kw_only=True):
    """Sandbox of a session. Paths are absolute and normalised; `protected_paths` may be relative to the workspace.

    Raises:
        ValueError: a path is not normalised, or relative where it may not be, or a host is none
    """

    profile: Profile = "workspace-write"
    network: Network = "none"
    read: Read = "minimal"
    workspaces: _Paths = []  # where a session's directory may be; empty: anywhere
    writable_paths: _Paths = []  # beyond the workspace; not in profile read-only
    readable_paths: _Paths = []  # beyond what the runtime needs
    protected_paths: _Paths = field(default_factory=lambda: list(PROTECTED))  # read-only inside writable paths
    hidden_paths: _Paths = []  # shown empty, wherever they are
    allowed_hosts: _Hosts = []  # with network `list`
    denied_hosts: _Hosts = []  # whatever is allowed
    private_networks: _Hosts = []  # that allowed names may lead to
    host_addresses: _Hosts = []  # NAME=ADDRESS, instead of the resolver
    upstream_proxy: str = ""
    limits: SandboxLimits = SandboxLimits()

    def __post_init__(self) -> None:
        for name in ("workspaces", "writable_paths", "readable_paths", "hidden_paths"):
            for path in getattr(self, name):
                _check(name, path, relative=False)
        for path in self.protected_paths:
            _check("protected_paths", path, relative=True)
        if self.upstream_proxy and not re.fullmatch(r"http://[^/@\s]+:[0-9]{1,5}/?", self.upstream_proxy):
            raise ValueError("upstream-proxy: it is http://HOST:PORT, without a user name")
        check_lists(self.allowed_hosts, self.denied_hosts, self.private_networks, self.host_addresses)

    def network_rules(self) -> NetworkRules | None:
        """Return what its sessions may reach by list, or None with another kind of network."""
        if self.network != "list":
            return None
        return NetworkRules(
            allowed_hosts=self.allowed_hosts,
            denied_hosts=self.denied_hosts,
            private_networks=self.private_networks,
            host_addresses=self.host_addresses,
            upstream_proxy=self.upstream_proxy,
            max_connections=self.limits.network_connections,
            max_bytes=self.limits.network_bytes,
        )


class SandboxOverrides(_Strict, frozen=True, kw_only=True):
    """Sandbox settings of a request; None keeps a field. Lists of grants replace, lists of restrictions extend."""

    profile: Profile | None = None
    network: Network | None = None
    read: Read | None = None
    writable_paths: _Paths | None = None
    readable_paths: _Paths | None = None
    protected_paths: _Paths | None = None
    hidden_paths: _Paths | None = None
    allowed_hosts: _Hosts | None = None
    denied_hosts: _Hosts | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    cpu_percent: int | None = None
    file_bytes: int | None = None
    open_files: int | None = None
    tmp_bytes: int | None = None
    network_connections: int | None = None
    network_bytes: int | None = None


class PolicyExceeded(ValueError):
    """A request asks for more than the policy grants."""

    def __init__(self, name: str, asked: object, given: object) -> None:
        self.field = name.replace("_", "-")
        super().__init__(f"{self.field}: {asked!r} is more than this broker grants ({given!r})")


def is_within(path: str, roots: Iterable[str]) -> bool:
    """Return whether a path equals or lies below one of the roots."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def may_work_in(policy: Policy, directory: str) -> bool:
    """Return whether a session may have this directory (absolute, without symlinks) as its workspace."""
    return not policy.workspaces or is_within(directory, policy.workspaces)


def tighten(base: Policy, request: SandboxOverrides) -> Policy:
    """Return the policy of a request, based on the broker's.

    Raises:
        PolicyExceeded: the request asks for more than `base`
        ValueError: a value is invalid
    """
    reads = [*base.readable_paths, *base.writable_paths] if base.read == "minimal" else ["/"]
    return Policy(
        profile=_tightest_choice("profile", get_args(Profile), base.profile, request.profile),
        network=_tightest_choice("network", get_args(Network), base.network, request.network),
        read=_tightest_choice("read", get_args(Read), base.read, request.read),
        workspaces=base.workspaces,
        writable_paths=_narrowed_paths(
            "writable_paths", base.writable_paths, base.writable_paths, request.writable_paths
        ),
        readable_paths=_narrowed_paths("readable_paths", reads, base.readable_paths, request.readable_paths),
        protected_paths=_merged_paths(base.protected_paths, request.protected_paths),
        hidden_paths=_merged_paths(base.hidden_paths, request.hidden_paths),
        allowed_hosts=_narrowed_hosts(base, request.allowed_hosts),
        denied_hosts=_merged_paths(base.denied_hosts, request.denied_hosts),
        private_networks=base.private_networks,
        host_addresses=base.host_addresses,
        upstream_proxy=base.upstream_proxy,
        limits=_build_limits(
            {name: _lower_limit(name, base.limits, request) for name in SandboxLimits.__struct_fields__}
        ),
    )


def combine_overrides(base: Policy, first: SandboxOverrides, second: SandboxOverrides) -> SandboxOverrides:
    """Return overrides as tight as both: those of an agent's rule, and those of its request.

    Raises:
        PolicyExceeded: the second ask for more than the first leave of `base`
        ValueError: a value is invalid
    """
    both = tighten(tighten(base, first), second)
    named = {
        name: value
        for overrides in (first, second)
        for name, value in msgspec.structs.asdict(overrides).items()
        if value is not None
    }
    if first.denied_hosts and second.denied_hosts:
        named["denied_hosts"] = [*first.denied_hosts, *second.denied_hosts]
    if "network" in named:
        named["network"] = both.network
    return SandboxOverrides(**named)


def apply_overrides(base: Policy, overrides: SandboxOverrides) -> Policy:
    """Return the policy of a session that was opened when `base` may have allowed other hosts.

    Hosts that it does not allow any more are left out.

    Raises:
        PolicyExceeded: the overrides ask for more than `base` in another way
    """
    asked = overrides.allowed_hosts
    if asked is not None and base.network != "host":
        kept = [entry for entry in asked if find_uncovered(base.allowed_hosts, [entry]) is None]
        overrides = msgspec.structs.replace(overrides, allowed_hosts=kept)
    return tighten(base, overrides)


def _check(field: str, path: str, relative: bool) -> None:
    parts = path.split("/")
    fine = posixpath.normpath(path) == path and ".." not in parts and path not in (".", "") and "\0" not in path
    if not fine or path.startswith("//") or not (relative or path.startswith("/")):
        raise ValueError(
            f"{field.replace('_', '-')}: {path!r} is not a normalised {'' if relative else 'absolute '}path"
        )


def _tightest_choice(field: str, order: tuple[Any, ...], given: str, asked: str | None) -> Any:
    """Return the requested choice if it is at most as loose as the given one; `order` goes from tight to loose."""
    if asked is None:
        return given
    if order.index(asked) > order.index(given):
        raise PolicyExceeded(field, asked, given)
    return asked


def _narrowed_paths(field: str, roots: list[str], given: list[str], asked: list[str] | None) -> list[str]:
    if asked is None:
        return given
    for path in asked:
        _check(field, path, relative=False)
        if not is_within(path, roots):
            raise PolicyExceeded(field, path, roots)
    return asked


def _narrowed_hosts(base: Policy, asked: list[str] | None) -> list[str]:
    if asked is None:
        return base.allowed_hosts
    check_lists(asked, [], [], [])
    if base.network != "host" and (entry := find_uncovered(base.allowed_hosts, asked)) is not None:
        raise PolicyExceeded("allowed_hosts", entry, base.allowed_hosts)
    return asked


def _merged_paths(given: list[str], asked: list[str] | None) -> list[str]:
    return list(dict.fromkeys([*given, *(asked or [])]))


def _build_limits(values: dict[str, int]) -> SandboxLimits:
    try:
        return msgspec.convert({name.replace("_", "-"): value for name, value in values.items()}, SandboxLimits)
    except msgspec.ValidationError as error:  # below the minimum
        raise ValueError(f"limits: {error}") from None


def _lower_limit(field: str, given: SandboxLimits, request: SandboxOverrides) -> int:
    most: int = getattr(given, field)
    asked: int | None = getattr(request, field)
    if asked is None:
        return most
    if asked > most:
        raise PolicyExceeded(field, asked, most)
    return asked

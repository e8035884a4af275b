"""The sandbox as the core sees it: its policy, the layers that work here, and the overrides that requests ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from replwire.faults import RequestError
from replwire.network import HostLists, NetworkRules
from replwire.policy import Policy, SandboxOverrides, apply_overrides, combine_overrides, tighten

_MAX_CAUSE = 2000
_decode_overrides = msgspec.json.Decoder(SandboxOverrides).decode


@dataclass(frozen=True, kw_only=True)
class SandboxStatus:
    """The sandbox of all sessions.

    Attributes:
        policy: Its policy; None if the config allows sessions without a sandbox.
        layers: The layers of protection that work here.
        missing: Those that do not.
        problem: The reason why there is no sandbox although there has to be one.
        can_hot_mount: A running sandbox can be given a directory.
    """

    policy: Policy | None = None
    layers: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    problem: str | None = None
    can_hot_mount: bool = True

    def require(self) -> None:
        """Raise RequestError when there is no sandbox although there has to be one."""
        if self.problem is not None:
            hint = "replctl doctor says what is missing; nothing runs unsandboxed unless the config file allows it"
            err = "sessions cannot be sandboxed here"
            raise RequestError("sandbox-unavailable", err, cause=self.problem[:_MAX_CAUSE], hint=hint)

    def encode_overrides(self, asked: SandboxOverrides | None, own: SandboxOverrides | None) -> bytes | None:
        """Return the overrides of a session that is opened, as JSON. Raises RequestError.

        Args:
            asked: Those of the request.
            own: Those of its agent's rule.
        """
        if asked is None and own is None:
            return None
        if self.policy is None:
            err = "sessions run unsandboxed here, so nothing of it can be made tighter"
            raise RequestError("sandbox-unavailable", err)
        try:
            both = combine_overrides(self.policy, own or SandboxOverrides(), asked or SandboxOverrides())
        except ValueError as error:
            raise RequestError("invalid-request", str(error)) from None
        return msgspec.json.encode(both)

    @staticmethod
    def decode_overrides(overrides: bytes | None) -> SandboxOverrides | None:
        """Return the overrides of a session."""
        return None if overrides is None else _decode_overrides(overrides)

    def covers(self, asked: SandboxOverrides, overrides: bytes | None) -> bool:
        """Return whether the sandbox of a session is as tight as asked for, and allows no less.

        Args:
            asked: Overrides of a request.
            overrides: The session's own, as JSON.
        """
        if self.policy is None:
            return False
        try:
            has = self.policy if overrides is None else tighten(self.policy, _decode_overrides(overrides))
            return tighten(has, asked) == has
        except ValueError:
            return False

    def network_rules(
        self, overrides: bytes | None, more_hosts: Iterable[str] = (), *, may_grow: bool = False
    ) -> NetworkRules | None:
        """Return what a session may reach by list; None with another kind of network.

        Args:
            overrides: Its overrides, as JSON.
            more_hosts: What it was allowed for a time.
            may_grow: Whether it may be allowed more.
        """
        if self.policy is None:
            return None
        asked = SandboxOverrides() if overrides is None else _decode_overrides(overrides)
        rules = apply_overrides(self.policy, asked).network_rules()
        if rules is None:
            return None
        origin = rules.origin if asked.allowed_hosts is None else "the allowed-hosts of this session"
        hosts = [*rules.allowed_hosts, *more_hosts]
        return msgspec.structs.replace(rules, allowed_hosts=hosts, origin=origin, may_grow=may_grow)

    def with_hosts(self, hosts: HostLists) -> SandboxStatus:
        """Return the same sandbox with other lists of hosts."""
        if self.policy is None:
            return self
        return replace(self, policy=msgspec.structs.replace(self.policy, **hosts._asdict()))

    def memory_limit(self, overrides: bytes | None) -> int | None:
        """Return the bytes that a session with these overrides may use; None without a sandbox."""
        if self.policy is None:
            return None
        asked = None if overrides is None else _decode_overrides(overrides).memory_bytes
        return self.policy.limits.memory_bytes if asked is None else asked

    def show(self) -> dict[str, Any] | str:
        """Return the part of `describe` and `info` about the sandbox."""
        if self.policy is None:
            return "none"
        lists = {"allowed-hosts": self.policy.allowed_hosts, "denied-hosts": self.policy.denied_hosts}
        return {
            "profile": self.policy.profile,
            "network": self.policy.network,
            **(lists if self.policy.network == "list" else {}),
            "read": self.policy.read,
            "writable-paths": list(self.policy.writable_paths),
            "limits": msgspec.to_builtins(self.policy.limits),
            "layers": list(self.layers),
            "missing": list(self.missing),
        }

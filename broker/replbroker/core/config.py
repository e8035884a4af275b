"""The core's configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from replbroker.core.sessions.sandbox_status import SandboxStatus
from replbroker.core.sessions.session import Session
from replwire.agents import AgentRule, AgentRules, PermissionRule
from replwire.identities import Identities
from replwire.limits import Limits
from replwire.network import NetworkRules
from replwire.ops import Request
from replwire.policy import Checkpoints


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """The settings of one broker. Immutable: a reload of the config file replaces it.

    Attributes:
        limits: All limits.
        warm_workers: Idle workers to keep.
        idle_exit_ms: Time without sessions and requests after which the broker ends; 0 for never.
        new_id: Returns a fresh unguessable id: the core has no randomness of its own.
        monotonic_to_unix: Returns the Unix time of monotonic zero, which moves when the wall clock is set.
        started: The moment of the start, in monotonic seconds.
        runtimes: The runtimes of sessions; the first is the default.
        agents: Rules for agents.
        identities: Quotas and host users of identities.
        audit: Write audit records.
        sandbox: The sandbox that sessions get.
        broker_user: The identity of the broker's own user.
        admins: Further identities that may do everything.
        name_of_token: Returns the name of a token, or None. Reads a file.
        versions: Names and versions of the programs involved.
        boot_id: Names this start of the broker in the ids of its events.
        emit_all_events: The shell wants every canonical event.
        credentials_of: Returns the keys and tokens that are valid for a name. Reads files.
        environments: Returns the named environments on the disk. Reads a directory.
        has_hooks: The shell has hooks, which run before every eval.
        extension_ops: Descriptions of the operations that extensions contribute, by name.
        checkpoints: When sessions take checkpoints.
        checkpoint_files: Whether these keep files, where a session does not say.
        install_packages: Whether sessions may install packages, where an agent has no rule of its own.
        more_hosts: Whether sessions may be allowed more hosts, likewise.
        sessions_outlive: Whether workers wait for another broker when this one ends.
        hibernate_after_ms: Time without an eval after which a session is hibernated; 0 for never.
    """

    limits: Limits
    warm_workers: int
    idle_exit_ms: int
    new_id: Callable[[], str]
    monotonic_to_unix: Callable[[], float]
    started: float = 0.0
    runtimes: tuple[str, ...] = ("python",)
    agents: AgentRules = field(default_factory=lambda: AgentRules([]))
    identities: Identities = field(default_factory=lambda: Identities([]))
    audit: bool = False
    sandbox: SandboxStatus = field(default_factory=SandboxStatus)
    broker_user: str = "self"
    admins: frozenset[str] = frozenset()
    name_of_token: Callable[[str], str | None] = lambda _: None
    versions: tuple[tuple[str, str], ...] = ()
    boot_id: str = "0"
    emit_all_events: bool = False
    credentials_of: Callable[[str], frozenset[object]] = lambda _: frozenset([""])
    environments: Callable[[], frozenset[str]] = frozenset
    has_hooks: bool = False
    extension_ops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    checkpoints: Checkpoints = "auto"
    checkpoint_files: bool = False
    install_packages: PermissionRule = "allow"
    more_hosts: PermissionRule = "deny"
    sessions_outlive: bool = False
    hibernate_after_ms: int = 0

    def rule_for(self, request: Request) -> AgentRule | None:
        """Return the rule for the agent of a request."""
        return self.agents.rule(request.agent, request.binding)

    def more_hosts_for(self, agent: str | None, binding: str | None) -> tuple[PermissionRule, str]:
        """Return whether sessions of an agent may be allowed more hosts, and the setting that says so."""
        rule = self.agents.rule(agent, binding)
        if rule is None or rule.more_hosts is None:
            return self.more_hosts, "sandbox.more-hosts"
        return rule.more_hosts, f"more-hosts of agent {rule.name}"

    def network_rules(self, session: Session) -> NetworkRules | None:
        """Return what a session may reach by list, with what it was allowed for a time; None with another network."""
        may_grow = self.more_hosts_for(session.agent, None)[0] != "deny"
        return self.sandbox.network_rules(session.spec.sandbox_overrides, session.more_hosts, may_grow=may_grow)

    def acts_as(self, identity: str) -> str:
        """Return the host user whose rights sessions of an identity use to open files."""
        return self.identities.acts_as(identity, self.broker_user)

"""`[[agents]]` in the config: the rules for each agent and each of its bindings (seed nexo-repl-tool).

An agent that is not listed has the rule of `*`, if there is one, and else may do all that the broker's limits allow.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from replwire.documented import documented
from replwire.identifiers import MAX_NAME_BYTES
from replwire.limits import DAY_MS, MIB
from replwire.policy import Network, SandboxOverrides

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES, pattern=r"^([a-zA-Z0-9_-]+|\*)$")]
ANY = "*"


PermissionRule = Literal["allow", "ask", "deny"]


class AgentRule(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Rules for one agent. A field left out keeps the broker's own limit."""

    name: Annotated[Name, documented("the `agent` of its requests; `*`: all agents not listed")]
    enabled: Annotated[bool, documented("false: refuse all requests of this agent")] = True
    allowed_runtimes: Annotated[list[str], documented("runtimes it may open sessions with; empty: all")] = []
    max_sessions: Annotated[int, documented("sessions it may have open at once", low=0, high=100_000)] = 100_000
    timeout_ms: Annotated[int, documented("run time of its code", low=1, high=30 * DAY_MS)] = 30 * DAY_MS
    max_output_bytes: Annotated[
        int, documented("live output of one eval in its sessions, per stream", low=16, high=1024 * MIB)
    ] = 1024 * MIB
    packages: Annotated[
        PermissionRule | None, documented("whether it may install packages; not set: as `packages.install` says")
    ] = None
    more_hosts: Annotated[
        PermissionRule | None,
        documented("whether its sessions may be allowed more hosts; not set: as `sandbox.more-hosts` says"),
    ] = None
    mode: Annotated[Literal["normal", "plan"], documented("`plan`: read-only, every change is refused")] = "normal"
    network: Annotated[Network | None, documented("network of its sessions, at most `sandbox.network`")] = None
    allowed_hosts: Annotated[
        list[str] | None, documented("hosts of its sessions, within `sandbox.allowed-hosts`; absent: those")
    ] = None
    denied_hosts: Annotated[list[str], documented("hosts that its sessions may not reach besides")] = []

    def sandbox_overrides(self) -> SandboxOverrides | None:
        """Return what its sessions' sandboxes are tightened by, or None."""
        if self.network is None and self.allowed_hosts is None and not self.denied_hosts:
            return None
        return SandboxOverrides(
            network=self.network, allowed_hosts=self.allowed_hosts, denied_hosts=self.denied_hosts or None
        )


class AgentEntry(AgentRule, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """An agent and the rules for its bindings.

    The rule of a binding replaces the agent's rule as a whole: a field that the binding leaves out falls back to the
    broker's limit, not to the agent's.
    """

    bindings: Annotated[list[AgentRule], documented("rules by the `binding` of a request")] = []


class AgentRules:
    """All agent rules, indexed by agent and binding.

    Raises:
        ValueError: a name is listed twice.
    """

    def __init__(self, agents: list[AgentEntry]) -> None:
        self._rules: dict[tuple[str, str | None], AgentRule] = {}
        for agent in agents:
            self._add((agent.name, None), agent)
            for binding in agent.bindings:
                self._add((agent.name, binding.name), binding)

    def _add(self, key: tuple[str, str | None], rule: AgentRule) -> None:
        if key in self._rules:
            raise ValueError(f"agents: {' / '.join(name for name in key if name)} is listed twice")
        self._rules[key] = rule

    def rule(self, agent: str | None, binding: str | None) -> AgentRule | None:
        """Return the rule for a request, or None if neither its agent nor `*` is listed."""
        if not self._rules:
            return None
        name = agent if agent is not None and (agent, None) in self._rules else ANY
        return self._rules.get((name, binding)) or self._rules.get((name, None))

"""A reload of the config file: the settings that may change while the broker runs, and how they take effect."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from replbroker.core.effects import Peer
from replbroker.core.operations.host_ops import send_network_rules
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.state import BrokerState, long_capacity
from replwire.agents import AgentRules
from replwire.events import ConfigReloaded
from replwire.faults import RequestError
from replwire.identities import Identities, Identity
from replwire.limits import Limits
from replwire.network import HostLists


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """The settings that can change; see `replwire.config.RELOADABLE`."""

    limits: Limits
    agents: AgentRules
    identities: tuple[Identity, ...]
    admins: frozenset[str]
    warm_workers: int
    idle_exit_ms: int
    hosts: HostLists = dataclasses.field(default_factory=HostLists)


@dataclass(frozen=True, kw_only=True)
class RereadResult:
    """The result of reading the config file again. Without `live` it cannot be used, for the reason in `error`."""

    live: LiveSettings | None = None
    reloaded: list[str] = dataclasses.field(default_factory=list)
    needs_restart: list[str] = dataclasses.field(default_factory=list)
    error: str = ""

    def __str__(self) -> str:
        if self.live is None:
            return f"the config file cannot be used, nothing has changed: {self.error}"
        restart = f"; needs a restart: {', '.join(self.needs_restart)}" if self.needs_restart else ""
        return f"the config file was read again: {', '.join(self.reloaded) or 'nothing'} changed{restart}"


def apply_reload(
    state: BrokerState, scheduler: EvalScheduler, result: RereadResult, peer: Peer | None, request_id: str, now: float
) -> None:
    """Apply new settings and reply.

    Args:
        state: The broker's state.
        scheduler: Its scheduler, which may have more slots now.
        result: The result of reading the config file.
        peer: The client to answer; None after a signal.
        request_id: The id of its request.
        now: Seconds, monotonic.
    """
    state.log(str(result))
    if result.live is None:
        error = RequestError("invalid-config", str(result))
        if peer is None:
            state.audit.record_own("reload-config", None, None, error.code, error.message)
        else:
            state.reply_error(peer, request_id, error)
        return
    _apply_settings(state, result.live)
    for following in scheduler.queue.fill():
        scheduler.lifecycle.start(following, now)
    scheduler.pool.refill(now)
    state.bus.emit(ConfigReloaded, reloaded=result.reloaded, needs_restart=result.needs_restart)
    if peer is None:
        state.audit.record_own("reload-config", None, None, "ok", None)
    fields = {"reloaded": result.reloaded, "needs_restart": result.needs_restart}
    state.reply(peer, request_id, status=["done"], **fields)


def _apply_settings(state: BrokerState, live: LiveSettings) -> None:
    """Replace limits and settings. Sessions keep the limits that they were opened with."""
    identities, limits = Identities(list(live.identities)), live.limits
    state.config = dataclasses.replace(
        state.config,
        limits=limits,
        agents=live.agents,
        identities=identities,
        admins=live.admins,
        warm_workers=live.warm_workers,
        idle_exit_ms=live.idle_exit_ms,
        sandbox=state.config.sandbox.with_hosts(live.hosts),
    )
    for session in state.sessions:
        send_network_rules(state, session)
    state.limits = state.bus.limits = state.emitter.limits = limits
    state.memory.set_limits(limits)
    state.access.set_admins(live.admins)
    state.quotas.configure(limits, identities.quotas(), state.access.admins)
    state.semaphore.capacity, state.semaphore.long_capacity = limits.max_concurrent_evals, long_capacity(limits)

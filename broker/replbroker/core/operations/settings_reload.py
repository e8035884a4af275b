"""Settings that change while the broker runs: what a new config file says of them, and how that comes into force."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from replbroker.core.effects import Peer
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.state import BrokerState
from replwire.agents import AgentRules
from replwire.events import ConfigReloaded
from replwire.faults import RequestError
from replwire.identities import Identities, Identity
from replwire.limits import Limits


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """The settings of a broker that can change; see `replwire.config.RELOADABLE`."""

    limits: Limits
    agents: AgentRules
    identities: tuple[Identity, ...]
    admins: frozenset[str]
    warm_workers: int
    idle_exit_ms: int


@dataclass(frozen=True, kw_only=True)
class RereadResult:
    """What came of reading the config file again. `live` None: it cannot be used, and `error` says why."""

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
    state: BrokerState, evals: EvalScheduler, reread: RereadResult, peer: Peer | None, request_id: str, now: float
) -> None:
    """Do it and tell who asked, nobody where it was a signal."""
    state.log(str(reread))
    if reread.live is None:
        refusal = RequestError("invalid-config", str(reread))
        if peer is None:
            state.audit.record_own("reload-config", None, None, refusal.code, refusal.message)
        else:
            state.reply_error(peer, request_id, refusal)
        return
    _apply_settings(state, reread.live)
    for following in state.semaphore.fill():
        evals.start(following, now)
    evals.pool.refill(now)
    state.bus.emit(ConfigReloaded, reloaded=reread.reloaded, needs_restart=reread.needs_restart)
    if peer is None:
        state.audit.record_own("reload-config", None, None, "ok", None)
    state.reply(peer, request_id, status=["done"], reloaded=reread.reloaded, needs_restart=reread.needs_restart)


def _apply_settings(state: BrokerState, live: LiveSettings) -> None:
    """Sessions keep the limits that they were opened with."""
    identities = Identities(list(live.identities))
    state.config = dataclasses.replace(
        state.config,
        limits=live.limits,
        agents=live.agents,
        identities=identities,
        admins=live.admins,
        warm_workers=live.warm_workers,
        idle_exit_ms=live.idle_exit_ms,
    )
    state.limits = state.bus.limits = state.emitter.limits = state.memory.limits = live.limits
    state.access.set_admins(live.admins)
    state.quotas.reload(identities.quotas())

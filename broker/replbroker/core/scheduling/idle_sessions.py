"""Sessions that nobody uses any more."""

from __future__ import annotations

from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import IDLE, VACANT
from replbroker.core.state import BrokerState


def close_idle(state: BrokerState, evals: EvalScheduler, now: float) -> None:
    """Close the sessions that were not used for `session-idle-timeout-ms`."""
    timeout = state.limits.session_idle_timeout_ms / 1000
    if not timeout:
        return
    for session in state.sessions:
        idle = session.state in (IDLE, VACANT) and not session.is_occupied and not session.inflight
        if idle and now - session.last_active >= timeout:
            evals.close(session, f"closed after {timeout:g} s without an eval", now)

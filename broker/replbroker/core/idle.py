"""Sessions that nobody uses any more."""

from __future__ import annotations

from replbroker.core.evals import Evals
from replbroker.core.session import IDLE, VACANT
from replbroker.core.state import State


def close_idle(state: State, evals: Evals, now: float) -> None:
    """Close the sessions that were not used for `session-idle-timeout-ms`."""
    timeout = state.limits.session_idle_timeout_ms / 1000
    if not timeout:
        return
    for session in state.sessions:
        idle = session.state in (IDLE, VACANT) and not session.occupied and not session.asks
        if idle and now - session.active >= timeout:
            evals.close(session, f"closed after {timeout:g} s without an eval", now)

"""The end of the broker: no new requests, then the last evals end, then the process."""

from __future__ import annotations

from replbroker.core.effects import StopBroker
from replbroker.core.operations.environment_ops import EnvironmentOps
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.scheduling.subscription_ends import end_subscriptions
from replbroker.core.state import BrokerState
from replwire.events import BrokerShutdown


class ShutdownSequence:
    """Drains one broker, and ends it."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler, environments: EnvironmentOps) -> None:
        self._state = state
        self._scheduler = scheduler
        self._environments = environments
        self._reason = ""

    def begin(self, why: str, now: float) -> None:
        """Accept nothing new. The broker ends after its last running eval, or when the grace period is over."""
        state = self._state
        if state.draining:
            return
        state.draining, self._reason = True, why
        state.log(why)
        for session in state.sessions:
            for task in session.waiting_evals():
                status = ["done", "error", "shutdown"]
                self._scheduler.lifecycle.end_waiting(task, status, "server is shutting down", now, state="lost")
        grace = state.limits.close_grace_ms / 1000
        state.drain_deadline = state.deadlines.call_at(now + grace, lambda at: self.finish(why, at))

    def finish(self, why: str, now: float) -> None:
        """Answer everything that still waits, and end the broker."""
        state = self._state
        state.deadlines.cancel(state.drain_deadline)
        state.drain_deadline = None
        for session in state.sessions:
            self._scheduler.teardown.close(session, why, now)
        self._environments.finish()
        state.bus.emit(BrokerShutdown, reason=self._reason)
        end_subscriptions(state, state.bus.all(), ["done", "error", "shutdown"], "server is shutting down")
        state.effects.append(StopBroker(why))

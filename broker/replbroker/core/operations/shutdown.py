"""The end of the broker: no new requests, then the last evals end, then the process; or sessions wait for the next."""

from __future__ import annotations

from typing import Final

from replbroker.core.effects import StopBroker
from replbroker.core.operations.environment_ops import EnvironmentOps
from replbroker.core.operations.extension_ops import ExtensionOps
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.scheduling.subscription_ends import end_subscriptions
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.session import STARTING, VACANT, Session
from replbroker.core.state import BrokerState
from replwire.events import BrokerShutdown
from replwire.faults import RequestError

_LEFT: Final = "the broker ends, and its sessions wait for the next one"


class ShutdownSequence:
    """Drains one broker, and ends it."""

    def __init__(
        self, state: BrokerState, scheduler: EvalScheduler, environments: EnvironmentOps, extensions: ExtensionOps
    ) -> None:
        self._state = state
        self._scheduler = scheduler
        self._environments = environments
        self._extensions = extensions
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

    def leave(self, why: str, now: float, *, restart: bool = False) -> None:
        """End the broker at once, and leave sessions and evals to the next one, which has the list of them.

        Args:
            why: The reason.
            now: Seconds, monotonic.
            restart: The broker's process begins again.
        """
        state = self._state
        if state.draining:
            return
        state.draining, self._reason = True, why
        state.log(f"{why}; sessions are left to the next broker")
        for session in state.sessions:
            self._leave_session(session, now)
        self._environments.finish()
        self._extensions.end_all()
        state.bus.emit(BrokerShutdown, reason=why)
        end_subscriptions(state, state.bus.all(), ["done", "error", "shutdown"], "server is shutting down")
        left = frozenset(
            self._scheduler.pool.workers[each.worker].process
            for each in state.sessions
            if each.worker is not None and each.state not in (STARTING, VACANT)
        )
        state.effects.append(StopBroker(why, left, restart))

    def _leave_session(self, session: Session, now: float) -> None:
        """Answer the clients that wait for a session's worker. Evals that were accepted are not ended."""
        error = RequestError("shutdown", _LEFT, hint="ask again when a broker listens")
        if session.replacement is not None:
            self._scheduler.teardown.cancel_replacement(session.replacement, error)
        for task in session.waiting_evals():
            if task.hook_deadline is not None:  # its code may not be stored
                status = ["done", "error", "shutdown"]
                self._scheduler.lifecycle.end_waiting(task, status, "server is shutting down", now, state="kept")
        running = [] if session.running is None else [session.running]
        for task in (*running, *session.waiting_evals()):
            if task.peer is not None:
                self._answer_left(task)
        self._scheduler.teardown.inflight.fail_all(session, error)

    def _answer_left(self, task: EvalTask) -> None:
        session = task.session
        self._state.reply(
            task.peer,
            task.request_id,
            status=["done", "error", "shutdown"],
            err=f"{_LEFT}; the eval goes on",
            hint=f"when a broker listens again, `replctl read {session.label} {task.eval_id}` shows its result",
            session=session.id,
            name=session.name,
            eval_id=task.eval_id,
            epoch=session.epoch,
            state="kept",
        )
        self._scheduler.lifecycle.detach_client(task)

    def finish(self, why: str, now: float) -> None:
        """Answer everything that still waits, and end the broker."""
        state = self._state
        state.deadlines.cancel(state.drain_deadline)
        state.drain_deadline = None
        for session in state.sessions:
            self._scheduler.teardown.close(session, why, now)
        self._environments.finish()
        self._extensions.end_all()
        state.bus.emit(BrokerShutdown, reason=self._reason)
        end_subscriptions(state, state.bus.all(), ["done", "error", "shutdown"], "server is shutting down")
        state.effects.append(StopBroker(why))

"""Maintenance: the periodic sweep over idle sessions, silent workers, revoked keys and an idle broker."""

from __future__ import annotations

from replbroker.core.admission.admission import Admission
from replbroker.core.limits.time_limits import sweep_pace
from replbroker.core.operations.hibernation import Hibernation
from replbroker.core.operations.shutdown import ShutdownSequence
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.session import HIBERNATED, IDLE, VACANT
from replbroker.core.state import BrokerState


class Maintenance:
    """Sweeps at a pace derived from the limits."""

    def __init__(
        self,
        state: BrokerState,
        scheduler: EvalScheduler,
        admission: Admission,
        shutdown: ShutdownSequence,
        hibernation: Hibernation,
    ) -> None:
        self._state = state
        self._teardown = scheduler.teardown
        self._pool = scheduler.pool
        self._admission = admission
        self._shutdown = shutdown
        self._hibernation = hibernation
        self._swept_at = self.workers_read_at = state.config.started
        self.set_pace()

    def set_pace(self) -> None:
        """Take over limits that have changed."""
        config = self._state.config
        self._pace_s = sweep_pace(self._state.limits, config.idle_exit_ms, config.hibernate_after_ms)

    def start(self, now: float) -> None:
        """Begin to sweep."""
        self._swept_at = now
        self._state.deadlines.call_at(now + self._pace_s, self._sweep)

    def on_suspended(self, seconds: float) -> None:
        """Put off every time limit after a time in which the broker itself did not run."""
        state = self._state
        state.deadlines.shift(seconds)
        state.last_request += seconds
        self._swept_at += seconds
        for worker in self._pool.workers.values():
            worker.last_seen += seconds
        for session in state.sessions:
            session.last_active += seconds
        state.log(f"the broker did not run for {seconds:.1f} s: every time limit is put off by that")

    def _sweep(self, now: float) -> None:
        state = self._state
        if now - self._swept_at > 2 * self._pace_s + 1:
            self._pool.reset_heartbeats(now)
        self._swept_at = now
        state.deadlines.call_at(now + self._pace_s, self._sweep)
        self._close_idle(now)
        self._hibernation.hibernate_idle(now)
        for worker in self._pool.missed_heartbeat(self.workers_read_at):
            if worker.number in self._pool.workers:
                cause = f"silent for {state.limits.worker_silence_ms} ms"
                self._teardown.on_worker_lost(worker, cause, now, dead=False)
        self._admission.revoke(state.access.find_revoked())
        for key in [key for key, window in state.rate_windows.items() if window.is_idle(now)]:
            del state.rate_windows[key]
        idle_s = state.config.idle_exit_ms / 1000
        if idle_s and not len(state.sessions) and now - state.last_request >= idle_s:
            self._shutdown.begin(f"no sessions and no requests for {idle_s:g} s", now)

    def _close_idle(self, now: float) -> None:
        """Close the sessions that were not used for `session-idle-timeout-ms`."""
        timeout = self._state.limits.session_idle_timeout_ms / 1000
        if not timeout:
            return
        for session in self._state.sessions:
            idle = session.state in (IDLE, VACANT, HIBERNATED) and not session.is_occupied and not session.inflight
            if idle and now - session.last_active >= timeout:
                self._teardown.close(session, f"closed after {timeout:g} s without an eval", now)

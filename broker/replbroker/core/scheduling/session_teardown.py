"""The ends of sessions, epochs and workers. Each answers everything that counted on the worker, by one walk."""

from __future__ import annotations

from typing import Any, NamedTuple

from replbroker.core.effects import DeletePackages, DeleteSnapshot
from replbroker.core.limits.quotas import SESSIONS
from replbroker.core.scheduling.eval_lifecycle import KILLED, EvalLifecycle
from replbroker.core.scheduling.eval_queue import EvalQueue
from replbroker.core.scheduling.inflight_requests import InflightRequests
from replbroker.core.scheduling.subscription_ends import end_subscriptions
from replbroker.core.scheduling.worker import Worker
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.session import CLOSED, STARTING, VACANT, Session
from replbroker.core.state import BrokerState
from replwire.faults import RequestError


class Ending(NamedTuple):
    """The answers to everything that a session's worker will not answer any more."""

    error: RequestError  # to requests in flight and clients that wait for the worker
    cause: str | None
    status: list[str]  # of the running eval
    message: str | None
    fields: dict[str, Any]
    state: dict[str, Any] = {"state": "lost"}  # noqa: RUF012 - never changed


class SessionTeardown:
    """Ends sessions and their workers. Owns the worker pool, whose failures come back here."""

    def __init__(self, state: BrokerState, queue: EvalQueue, inflight: InflightRequests) -> None:
        self._state = state
        self.inflight = inflight
        self.pool = WorkerPool(state, self)
        self.lifecycle = EvalLifecycle(state, queue, self.pool, inflight, self)

    # --- workers ---

    def on_worker_lost(self, worker: Worker, cause: str, now: float, *, dead: bool) -> None:
        """Handle the loss of a worker. `dead` is False when its process still has to be killed."""
        session = worker.session
        if session is None:
            self.pool.on_unassigned_exit(worker, cause, now, dead=dead)
        elif session.state == STARTING:
            self.on_start_failed(session, cause, now)
        else:
            self._state.log(f"session {session.label}: worker {worker.number} lost: {cause}")
            killed = session.running is not None and session.running.cancel_reason == KILLED
            self.lose_worker(session, cause, now, timed_out=killed)
        self.pool.refill(now)

    def lose_worker(
        self, session: Session, cause: str, now: float, *, code: str = "worker-lost", timed_out: bool = False
    ) -> None:
        """End the epoch of a session whose worker is dead or has to be.

        The next eval gets a fresh worker, and is told the cause unless a client has been told already.

        Args:
            session: The session.
            cause: The reason, for clients and events.
            now: Seconds, monotonic.
            code: The fault: `worker-lost` or `session-reset`.
            timed_out: The running eval ignored the interrupt at its time limit.
        """
        state = self._state
        self._end_epoch(session)
        state.emitter.emit_session_lost(session, cause, code)
        if session.replacement is not None:
            self.cancel_replacement(
                session.replacement, RequestError("session-reset", f"meanwhile: {cause}", cause=cause)
            )
        has_client = any(task.peer is not None for task in (session.running, *session.waiting_evals()) if task)
        session.lost_cause = cause if code == "worker-lost" and not has_client else None
        ending = self._epoch_ending(session, cause, code, timed_out=timed_out)
        if session.running is None:
            self.answer_all(session, ending, now)
            self.lifecycle.advance(session, now)
            return
        state.counts["evals.timeout" if timed_out else "evals.lost"] += 1
        self.answer_all(session, ending, now)

    def _end_epoch(self, session: Session) -> None:
        self.pool.discard_worker(session)
        self.delete_stored(session)
        if session.state != VACANT:
            session.transition("lose")
        self._state.records.raise_epoch(session)

    def _epoch_ending(self, session: Session, cause: str, code: str, *, timed_out: bool = False) -> Ending:
        err = {"worker-lost": f"worker lost: {cause}", "session-reset": f"session reset: {cause}"}[code]
        error = RequestError(code, err, cause=cause, epoch=session.epoch)
        if not timed_out or session.running is None:
            return Ending(error, cause, ["done", "error", code], err, {})
        message = f"eval timed out after {session.running.time_limit.ms} ms"
        return Ending(error, cause, ["done", "error", "timeout"], message, self.timeout_fields(session.running))

    def delete_stored(self, session: Session) -> None:
        """Delete the stored variables of a hibernated session, which has them again or begins anew."""
        if session.hibernated is not None:
            self._state.effects.append(DeleteSnapshot(session.hibernated.path))
            session.hibernated = None

    def timeout_fields(self, task: EvalTask) -> dict[str, Any]:
        """Return further fields of the answer to an eval that was killed at its time limit."""
        hint = f"the code did not stop within {self._state.limits.interrupt_grace_ms} ms of its interrupt"
        return {"hint": hint, "max_eval_time_ms": task.time_limit.ms}

    def leave_worker(self, session: Session, cause: str) -> bool:
        """End the epoch of an unused session that another worker takes over. Its waiting evals stay.

        Returns:
            True if there was a worker, whose variables are lost.
        """
        had_worker = session.was_ready and (session.worker is not None or session.hibernated is not None)
        self._end_epoch(session)
        session.lost_cause = None
        self.inflight.fail_all(session, self._epoch_ending(session, cause, "session-reset").error)
        return had_worker

    def on_start_failed(self, session: Session, cause: str, now: float, code: str = "worker-lost") -> None:
        """Handle that a session got no worker. A session that never had one is closed.

        Args:
            session: The session, or the replacement of one.
            cause: The reason, for clients.
            now: Seconds, monotonic.
            code: The fault.
        """
        if code == "worker-lost" and session.spec.environment is not None and not session.was_ready:
            code = "environment-failed"  # it was asked for by path, and to ask again is of no use
        if code == "worker-lost" and session.is_new_branch:
            code = "checkpoint-failed"
        if session.replaces is not None:
            err = f"the environment cannot be used, nothing has changed: {cause}"
            self.cancel_replacement(session, RequestError("environment-failed", err, cause=cause))
            self.lifecycle.advance(session.replaces, now)
            return
        self.pool.discard_worker(session)
        is_stored = session.hibernated is not None
        session.transition("hibernate" if is_stored else "lose")
        error = RequestError(code, f"session {session.label}: {cause}", cause=cause)
        result = {"state": "kept" if is_stored else "lost"}
        ending = Ending(error, cause, ["done", "error", code], error.message, {}, result)
        self.answer_all(session, ending, now, keep_waiting=session.was_ready)
        if not session.was_ready and session.state is not CLOSED:
            self.close(session, f"never started: {cause}", now)

    def cancel_replacement(self, replacement: Session, error: RequestError) -> None:
        """Give up a change of environment: its session stays as it is."""
        session = replacement.replaces
        assert session is not None
        session.replacement = None
        self.pool.discard_worker(replacement)
        for waiter in replacement.waiters:
            self._state.reply_error(waiter.peer, waiter.request_id, error)

    # --- sessions ---

    def close(self, session: Session, why: str, now: float, *, asked: bool = False) -> None:
        """End a session: kill its processes, answer its evals, free its name.

        Args:
            session: The session.
            why: The reason, for clients and events.
            now: Seconds, monotonic.
            asked: A client wanted this, so the next session of the name has nothing to report.
        """
        state = self._state
        self.pool.discard_worker(session)
        self.delete_stored(session)
        state.deadlines.cancel(session.host_deadline)
        session.transition("close")
        state.sessions.remove(session, why, asked=asked)
        state.quotas.release(SESSIONS, session.holder)
        cause = f"the broker that had it ended: {why}" if state.draining else why
        state.records.close(session, None if asked else cause)
        error = RequestError("session-not-found", f"Session not found: {session.label}", cause=why)
        if session.replacement is not None:
            self.cancel_replacement(session.replacement, error)
        self.answer_all(session, Ending(error, why, ["done", "interrupted", "session-closed"], None, {}), now)
        if session.has_packages:
            state.effects.append(DeletePackages(session.id))
        state.emitter.emit_session_closed(session, why)
        end_subscriptions(state, state.bus.subscriptions_to(session), ["done", "session-closed"])
        self.pool.refill(now)

    # --- the walk ---

    def answer_all(self, session: Session, ending: Ending, now: float, *, keep_waiting: bool = False) -> None:
        """Answer waiting evals, requests in flight, clients that wait for the worker, and the running eval."""
        task, error = session.running, ending.error
        for waiting in [] if keep_waiting else session.waiting_evals():
            err = error.message
            if error.code != "session-not-found":
                err = f"{err}; this eval was queued and never ran"
            status = ["done", "error", error.code]
            self.lifecycle.end_waiting(waiting, status, err, now, cause=ending.cause, **ending.state)
        self.inflight.fail_all(session, error)
        if task is not None:
            self.lifecycle.reply_final(
                task, ending.status, ending.message, now, cause=ending.cause, **ending.state, **ending.fields
            )
            self.lifecycle.finish(task, ending.status, now)

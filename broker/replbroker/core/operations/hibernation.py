"""Hibernation: a session's variables are stored in a file, its processes end, and the next eval brings them back.

The worker writes a snapshot in its turn, as for a clone. The record of it is saved before the worker is killed, so the
session survives the end of the broker, and of the host.
"""

from __future__ import annotations

import msgspec

from replbroker.core.effects import DeleteSnapshot, Peer
from replbroker.core.limits.fair_semaphore import SlotRequest
from replbroker.core.limits.time_limits import time_limit
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.scheduling.outcomes import COUNTED_AS
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.session import HIBERNATED, IDLE, Session
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.link import HibernatedState, Outcome, SnapshotBody

_encode = msgspec.json.Encoder().encode


class Hibernation:
    """Hibernates sessions, by request and after a time without evals."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler) -> None:
        self._state = state
        self._scheduler = scheduler

    def hibernate(self, request: wire.Hibernate, peer: Peer, body: bytes, now: float) -> None:
        """Have the session's worker write a snapshot in its turn. `on_snapshot` goes on from there."""
        if self._state.draining:
            raise RequestError("shutdown", "server is shutting down")
        if request.wait_ms is not None:
            err = "hibernate does not accept wait-ms: its answer could not be read later"
            raise RequestError("invalid-request", err)
        session = self._state.lookup.get(request, peer)
        if (why := self._obstacle(session)) is not None:
            raise RequestError("not-supported", f"session {session.label} cannot be hibernated: {why}")
        if session.state == HIBERNATED and not session.is_occupied:
            stored = session.hibernated
            assert stored is not None
            fields = {"count": stored.count, "bytes": stored.bytes, "skipped": stored.skipped}
            named = {"session": session.id, "name": session.name, "epoch": session.epoch}
            self._state.reply(peer, request.id, status=["done"], state="kept", **named, **fields)
            return
        self._scheduler.submit(session, request, peer, body, now)

    def hibernate_idle(self, now: float) -> None:
        """Hibernate the sessions that were not used for `session.hibernate-after-ms`, as slots are free."""
        state = self._state
        after = state.config.hibernate_after_ms / 1000
        if not after or state.draining:
            return
        for session in state.sessions:
            is_idle = session.state == IDLE and not (session.is_in_use or session.inflight or session.has_unread)
            is_new = session.kept_awake_at != session.last_active  # else the last attempt has failed
            if is_idle and is_new and now - session.last_active >= after and self._obstacle(session) is None:
                self._begin(session, now)

    def _obstacle(self, session: Session) -> str | None:
        """Return why a session cannot be hibernated, or None."""
        if session.ephemeral:
            return "it ends with its eval"
        if len(self._scheduler.pool.family(session)) > 1:
            return "it shares its sandbox with branches"
        if session.worker is not None and session.worker_identity != session.owner:
            return "its variables are from another owner, who had other rights"
        return None

    def _begin(self, session: Session, now: float) -> None:
        """Hibernate a session as the broker's own eval, which no hook has to judge."""
        state = self._state
        request = wire.Hibernate(id=state.config.new_id(), op="hibernate", session=session.id)
        limit = time_limit(request, state.limits, None)
        slot_request = SlotRequest(session.holder, limit.ms > state.limits.max_eval_time_ms)
        if not state.semaphore.try_acquire(slot_request):
            return
        session.kept_awake_at = session.last_active
        task = EvalTask(session, state.new_route(), None, slot_request, request, limit, now)
        task.body = _encode(request)
        state.routes[task.route] = task
        session.evals.append(task)
        state.changes.evals[task] = None
        state.emitter.emit_eval_accepted(task, request)
        self._scheduler.lifecycle.start(task, now)

    def on_snapshot(self, task: EvalTask, snapshot: SnapshotBody, now: float) -> None:
        """End the worker whose variables are stored."""
        state, session, lifecycle = self._state, task.session, self._scheduler.lifecycle
        if (why := self._obstacle(session)) is not None:
            state.effects.append(DeleteSnapshot(snapshot.path))
            status = ["done", "error", "not-supported"]
            err = f"session {session.label} cannot be hibernated: {why}"
            session.transition("finish")
            lifecycle.reply_final(task, status, err, now, state="kept")
            lifecycle.finish(task, status, now)
            return
        session.transition("finish")
        self._scheduler.pool.discard_worker(session)
        session.hibernated = HibernatedState(
            snapshot.path, round(state.clock.to_unix(now), 3), snapshot.count, snapshot.bytes, snapshot.skipped
        )
        session.transition("hibernate")
        state.records.raise_epoch(session)
        ended = RequestError("session-reset", f"session {session.label} was hibernated", epoch=session.epoch)
        self._scheduler.inflight.fail_all(session, ended)
        state.emitter.emit_session_hibernated(session, session.hibernated)
        if task.peer is None:
            state.audit.record_own("hibernate", session.agent, session.label, "ok", None)
        copied = {"count": snapshot.count, "bytes": snapshot.bytes, "skipped": snapshot.skipped}
        named = {"session": session.id, "name": session.name}
        lifecycle.reply_final(task, ["done"], None, now, state="kept", **named, **copied)
        state.counts[COUNTED_AS[Outcome.OK]] += 1
        lifecycle.finish(task, ["done"], now)
        self._scheduler.pool.refill(now)

"""The life of an eval: taken in, queued, given a slot, run, cancelled, ended. One at a time in a session.

First the session's own queue, then a slot at the gate, then the worker. An eval runs in the epoch it was
sent for or not at all: when the worker goes, what was queued behind it ends too, instead of running
without the names it counts on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replbroker.core.effects import Peer, ToWorker
from replbroker.core.limits.fair_semaphore import SlotRequest
from replbroker.core.limits.quotas import QUEUE, SESSIONS
from replbroker.core.operations.subscription_ops import end_subscriptions
from replbroker.core.scheduling.inflight_requests import InflightRequests
from replbroker.core.scheduling.outcomes import COUNTED_AS, STATUS_OF
from replbroker.core.scheduling.time_limits import time_limit
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.sessions.session import (
    CLOSED,
    IDLE,
    STARTING,
    VACANT,
    EvalTask,
    ReadyWaiter,
    Session,
    WorkerRequest,
)
from replbroker.core.state import BrokerState
from replwire.faults import RequestError, clip
from replwire.link import AssignedBody, CancelBody, FrameKind, encode, pack
from replwire.ops import Queueable

_QUEUED_NOTICE_S = (
    0.01  # an eval that waits longer than this is told so: a shorter wait is over before it could be read of
)


class EvalScheduler:
    """All evals and the sessions they run in."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.pool = WorkerPool(state, self.on_start_failed)
        self.inflight = InflightRequests(state)
        # Set by Moves, which stands above: what becomes of a session's stand-in.
        self.moved: Callable[[Session, float], None]
        self.not_moved: Callable[[Session, RequestError], None]
        self.judge: Callable[[EvalTask, Queueable, Peer, float], None] | None = (
            None  # set by Judging, where there are hooks
        )

    # --- in ---

    def submit(self, session: Session, request: Queueable, peer: Peer, body: bytes, now: float) -> EvalTask:
        """Take an eval in. Raises Refusal: `memory-limit-reached`, or `concurrency-limit-reached` when it would wait
        and may not."""
        state = self._state
        state.memory.check(session.owner)
        time = time_limit(request, state.limits, state.rule(request))
        turn = SlotRequest(state.holder(request, peer), time.ms > state.limits.max_eval_time_ms)
        if session.is_occupied or self.judge is not None or not state.semaphore.has_room(turn):
            state.check_queue(turn.holder)
        job = EvalTask(session, state.next_route(), peer, turn, request, now)
        job.body = body
        job.limit_ms, job.time_hint = time.ms, time.hint
        if time.notice is not None:
            state.reply(peer, request.id, notice=time.notice)
        state.routes[job.route] = job
        state.by_request[peer, request.id] = job
        state.mark_active(session, now)
        session.evals.append(job)
        session.queue.append(job)
        state.quotas.charge(QUEUE, turn.holder)
        if self.judge is not None:
            self.judge(job, request, peer, now)
        elif request.in_history:
            session.add_history(job, request.summary())
        state.emitter.emit_eval_accepted(job, request)
        self.promote(session, now)
        if job.state is EvalTask.QUEUED:
            self._arm_queue(job, request, now)
        if request.wait_ms is not None:
            when = now + min(request.wait_ms, state.limits.max_wait_ms) / 1000
            job.wait_deadline = state.deadlines.call_at(when, lambda _: self._wait_timed_out(job))
        return job

    def _arm_queue(self, job: EvalTask, request: Queueable, now: float) -> None:
        wait_ms = self._state.limits.max_queue_wait_ms
        if request.timeout_ms is not None and request.wait_ms is None:
            wait_ms = min(wait_ms, request.timeout_ms)
        job.deadline = self._state.deadlines.call_at(
            now + wait_ms / 1000, lambda at: self._queue_timed_out(job, wait_ms, at)
        )
        job.notice = self._state.deadlines.call_at(now + _QUEUED_NOTICE_S, lambda _: self._notify_queued(job))

    def _notify_queued(self, job: EvalTask) -> None:
        if job.judging is not None and job.session.running is None and job.session.queue[0] is job:
            return  # it waits for hooks alone, and not for long
        position = job.session.position(job, len(self._state.semaphore))
        self._state.reply(job.peer, job.request_id, status=["queued"], queue_position=position, eval_id=job.eval_id)
        self._state.emitter.emit_eval_queued(job, position)

    # --- on ---

    def promote(self, session: Session, now: float) -> None:
        """Bring the next eval of the session to the gate, unless hooks are still to judge it."""
        if session.running is not None or session.next_up is not None or session.replacement or not session.queue:
            return
        if session.queue[0].judging is not None:
            return
        job = session.queue.popleft()
        if self._state.semaphore.acquire(job.turn, job):
            self.start(job, now)
        else:
            session.next_up = job

    def start(self, job: EvalTask, now: float) -> None:
        """The eval has a slot."""
        session = job.session
        session.next_up, session.running = None, job
        self._leave_queue(job)
        job.state = EvalTask.STARTING
        if session.state == IDLE:
            self._dispatch(job, now)
        elif session.state == VACANT:
            self.pool.acquire(session, now)

    def _leave_queue(self, job: EvalTask) -> None:
        self._state.quotas.release(QUEUE, job.turn.holder)
        self._state.deadlines.cancel(job.deadline)
        self._state.deadlines.cancel(job.notice)
        job.deadline = job.notice = None

    def _dispatch(self, job: EvalTask, now: float) -> None:
        session, state = job.session, self._state
        session.transition("dispatch")
        job.state, job.started = EvalTask.RUNNING, now
        self._send(session, FrameKind.REQUEST, job.body or b"", job)
        job.body = None
        job.deadline = state.deadlines.call_at(now + job.limit_ms / 1000, lambda at: self._on_time_limit(job, at))
        state.emitter.emit_eval_started(job, now)
        self.inflight.flush(session, job.eval_id)

    def _send(self, session: Session, kind: FrameKind, body: bytes, job: EvalTask) -> None:
        assert session.worker is not None
        frame = pack(kind, body, epoch=session.epoch, eval=job.eval_id, route=job.route)
        self._state.effects.append(ToWorker(session.worker, frame))

    def on_assigned(self, session: Session, claimed: AssignedBody, now: float) -> None:
        """The worker took the session's folder, environment and snapshot, or could not."""
        if session.state != STARTING:
            return
        if claimed.error is not None:
            word = "invalid-request" if session.snapshot_path is None else "clone-failed"
            self.on_start_failed(session, clip(claimed.error), now, word=word)
            return
        self._state.deadlines.cancel(session.start_deadline)
        session.start_deadline = None
        session.executable = claimed.executable
        if session.replaces is not None:
            self.moved(session, now)
            return
        self.pool.delete_snapshot(session)
        session.transition("claimed")
        session.was_ready, session.lost_cause, session.cwd_unavailable = True, None, claimed.notice is not None
        for waiter in session.waiters:
            self._answer_waiter(waiter, session, claimed)
        session.waiters.clear()
        if session.running is not None:
            if claimed.notice is not None:
                self._state.reply(session.running.peer, session.running.request_id, notice=claimed.notice)
            self._dispatch(session.running, now)
        self.inflight.flush(session, 0)

    def _answer_waiter(self, waiter: ReadyWaiter, session: Session, claimed: AssignedBody) -> None:
        copied: dict[str, Any] = {}
        if waiter.copied is not None:
            left = [*waiter.copied.left_behind, *claimed.left_behind]
            copied = {"count": waiter.copied.count - len(claimed.left_behind), "bytes": waiter.copied.bytes}
            copied |= {"left_behind": left, "new_session": None if waiter.old_words else session.id}
        self._state.reply(
            waiter.peer,
            waiter.request_id,
            status=["done"],
            session=session.id,
            name=session.name,
            epoch=session.epoch,
            created=waiter.created,
            state="lost" if waiter.cause or not waiter.created else None,
            cause=waiter.cause,
            cwd=session.directory if waiter.created else None,
            notice=claimed.notice or session.notice,
            trusted=False if waiter.created and not copied else None,
            **copied,
        )

    # --- out ---

    def on_eval_finished(self, job: EvalTask, outcome: int, now: float) -> None:
        """The worker said the terminal message of a running eval."""
        job.session.transition("finish")
        self._finish(job, STATUS_OF[outcome], now)
        self._state.counts[COUNTED_AS[outcome]] += 1

    def _finish(self, job: EvalTask, status: list[str], now: float) -> None:
        """An eval that had a slot is over: the slot goes on, the session's next one comes up."""
        session = job.session
        session.running = None
        self._complete(job, status, now)
        if session.state is not CLOSED:
            self.advance(session, now)
        for following in self._state.semaphore.release(job.turn):
            self.start(following, now)

    def advance(self, session: Session, now: float) -> None:
        """An eval of the session has ended: its next one comes up, a throw-away session goes with its last one."""
        if session.ephemeral and not session.is_occupied and not session.inflight:
            self.close(session, "throw-away", now)
        else:
            self.promote(session, now)

    def _complete(self, job: EvalTask, status: list[str], now: float) -> None:
        state = self._state
        for deadline in (job.deadline, job.wait_deadline, job.judging):
            state.deadlines.cancel(deadline)
        state.routes.pop(job.route, None)
        self.detach_client(job)
        job.state, job.status, job.body, job.request = EvalTask.DONE, status, None, None
        job.session.trim_evals(state.limits.max_history)
        if job.started is not None:
            job.duration = round((now - job.started) * 1000, 3)
        state.emitter.emit_eval_finished(job)
        for ask in [ask for ask in job.session.deferred if ask.eval_id == job.eval_id]:
            self.inflight.finish(ask)
            err = f"eval {job.eval_id} ended ({' '.join(status)}) and never ran"
            state.reply_error(ask.peer, ask.request_id, RequestError("eval-not-found", err, eval_id=job.eval_id))
        state.mark_active(job.session, now)

    def detach_client(self, job: EvalTask) -> None:
        """Nobody waits for this eval's answer any more; it goes on."""
        if job.peer is not None:
            key = (job.peer, job.request_id)
            if self._state.by_request.get(key) is job:  # else the client used its id again
                del self._state.by_request[key]
            job.peer = None

    def _answer(self, job: EvalTask, status: list[str], err: str | None, now: float, **more: Any) -> None:
        """A terminal message that the broker writes itself, because the worker cannot."""
        session = job.session
        duration = None if job.started is None else round((now - job.started) * 1000, 3)
        self._state.reply(
            job.peer,
            job.request_id,
            status=status,
            err=err,
            eval_id=job.eval_id,
            epoch=session.epoch,
            ephemeral=True if session.ephemeral else None,
            duration_ms=duration,
            **more,
        )
        self._state.emitter.record_broker_final(job, err, more.get("cause"), more.get("state"))

    def end_waiting(self, job: EvalTask, status: list[str], err: str | None, now: float, **more: Any) -> None:
        """End an eval that has no slot."""
        session = job.session
        if session.next_up is job:
            session.next_up = None
            self._state.semaphore.cancel(job.turn, job)
        else:
            session.queue.remove(job)
        self._leave_queue(job)
        self._answer(job, status, err, now, **more)
        self._complete(job, status, now)

    def _wait_timed_out(self, job: EvalTask) -> None:
        self._state.reply(
            job.peer,
            job.request_id,
            status=["done", "running"],
            eval_id=job.eval_id,
            epoch=job.session.epoch,
            session=job.session.id,
            name=job.session.name,
            queue_position=self.position(job),
        )
        self.detach_client(job)

    def position(self, job: EvalTask) -> int | None:
        """How many evals go before it; None when it has its slot, though its worker may still be starting."""
        return job.session.position(job, len(self._state.semaphore)) if job.state is EvalTask.QUEUED else None

    def on_request_finished(self, ask: WorkerRequest, now: float) -> None:
        """A request that the worker answers is over."""
        self.inflight.finish(ask)
        if ask.session.ephemeral and ask.session.state is not CLOSED:
            self.advance(ask.session, now)

    # --- cut short ---

    def interrupt(self, job: EvalTask, by: str, now: float) -> None:
        """Cancel one eval on somebody's wish: a waiting one ends at once, a running one is signalled."""
        session = job.session
        self._state.emitter.emit_interrupt_requested(job, by)
        if job.state is EvalTask.RUNNING:
            job.cancelled = job.cancelled or "interrupt"
            self._send(session, FrameKind.CANCEL, encode(CancelBody()), job)
        elif job.state is EvalTask.STARTING:
            self._answer(job, ["done", "interrupted"], None, now, state="kept")
            self._finish(job, ["done", "interrupted"], now)
        elif job.state is EvalTask.QUEUED:
            self.end_waiting(job, ["done", "interrupted"], None, now, state="kept")
            self.advance(session, now)

    def _queue_timed_out(self, job: EvalTask, wait_ms: int, now: float) -> None:
        session = job.session
        err = f"eval timed out after {wait_ms} ms in the queue and never ran"
        hint = "another eval of the session, or the limit of concurrent evals, held it up"
        self.end_waiting(job, ["done", "error", "timeout"], err, now, state="kept", max_eval_time_ms=wait_ms, hint=hint)
        self.advance(session, now)

    def _on_time_limit(self, job: EvalTask, now: float) -> None:
        """The code ran for as long as it may: ask it to stop, and after the grace kill it."""
        if job.cancelled != "timeout":
            job.cancelled = "timeout"
            self._state.emitter.emit_interrupt_requested(job, "time-limit")
            self._send(
                job.session, FrameKind.CANCEL, encode(CancelBody(limit_ms=job.limit_ms, hint=job.time_hint)), job
            )
            grace = self._state.limits.interrupt_grace_ms / 1000
            job.deadline = self._state.deadlines.call_at(now + grace, lambda at: self._on_time_limit(job, at))
            return
        cause = f"killed: it ignored the interrupt at its time limit of {job.limit_ms} ms"
        self.lose_worker(job.session, cause, now, timed_out=True)

    def lose_worker(
        self,
        session: Session,
        cause: str,
        now: float,
        *,
        word: str = "worker-lost",
        timed_out: bool = False,
        moving: bool = False,
    ) -> None:
        """The session's worker is dead or is to be: everything that counted on it is answered, the epoch goes up.

        The next eval gets a fresh worker and is told how the last one went, unless somebody has been told.
        """
        state = self._state
        self.pool.discard_worker(session)
        if session.state != VACANT:
            session.transition("lose")
        state.records.raise_epoch(session)
        if not moving:
            state.emitter.emit_session_lost(session, cause, word)
        if session.replacement is not None and not moving:
            self.not_moved(session.replacement, RequestError("session-reset", f"meanwhile: {cause}", cause=cause))
        told = any(job.peer is not None for job in (session.running, *session.waiting_evals()) if job)
        session.lost_cause = cause if word == "worker-lost" and not told else None
        err = {"worker-lost": f"worker lost: {cause}", "session-reset": f"session reset: {cause}"}[word]
        for job in session.waiting_evals() if not moving else ():
            queued = f"{err}; this eval was queued and never ran"
            self.end_waiting(job, ["done", "error", word], queued, now, state="lost", cause=cause)
        self.inflight.fail_all(session, RequestError(word, err, cause=cause, epoch=session.epoch))
        job_running = session.running
        if job_running is None:
            self.advance(session, now)
            return
        if timed_out:
            status, err = ["done", "error", "timeout"], f"eval timed out after {job_running.limit_ms} ms"
            hint = f"the code did not obey its interrupt within {state.limits.interrupt_grace_ms} ms"
            self._answer(
                job_running,
                status,
                err,
                now,
                state="lost",
                cause=cause,
                hint=hint,
                max_eval_time_ms=job_running.limit_ms,
            )
        else:
            status = ["done", "error", word]
            self._answer(job_running, status, err, now, state="lost", cause=cause)
        state.counts["evals.timeout" if timed_out else "evals.lost"] += 1
        self._finish(job_running, status, now)

    def on_start_failed(self, session: Session, cause: str, now: float, word: str = "worker-lost") -> None:
        """The session got no worker. One that never had any goes, nothing half-made is left."""
        if word == "worker-lost" and session.spec.environment is not None and not session.was_ready:
            word = "environment-failed"  # it was asked for by path, and to ask again is of no use
        refusal = RequestError(word, f"session {session.label}: {cause}", cause=cause)
        if session.replaces is not None:
            err = f"the environment cannot be used, nothing has changed: {cause}"
            self.not_moved(session, RequestError("environment-failed", err, cause=cause))
            self.advance(session.replaces, now)
            return
        job = session.running
        self.pool.discard_worker(session)
        session.transition("lose")
        self.inflight.fail_all(session, refusal)
        status = ["done", "error", word]
        if not session.was_ready:
            for waiting in session.waiting_evals():
                queued = f"{refusal.message}; this eval was queued and never ran"
                self.end_waiting(waiting, status, queued, now, state="lost", cause=cause)
        if job is not None:
            self._answer(job, status, refusal.message, now, state="lost", cause=cause)
            self._finish(job, status, now)
        if not session.was_ready and session.state is not CLOSED:
            self.close(session, f"never started: {cause}", now)

    def close(self, session: Session, why: str, now: float, *, asked: bool = False) -> None:
        """End a session: its processes are killed, its evals are answered, its name is free.

        `asked`: somebody wanted this, so it is no news to the next session of the name.
        """
        state = self._state
        job = session.running
        self.pool.discard_worker(session)
        session.transition("close")
        state.sessions.remove(session, why, asked=asked)
        state.quotas.release(SESSIONS, session.holder)
        cause = f"the broker that had it ended: {why}" if state.draining else why
        state.records.close(session, None if asked else cause)
        if session.replacement is not None:
            gone = RequestError("session-not-found", f"Session not found: {session.label}", cause=why)
            self.not_moved(session.replacement, gone)
        for waiting in session.waiting_evals():
            err = f"Session not found: {session.label}"
            self.end_waiting(waiting, ["done", "error", "session-not-found"], err, now, state="lost", cause=why)
        self.inflight.fail_all(
            session, RequestError("session-not-found", f"Session not found: {session.label}", cause=why)
        )
        if job is not None:
            status = ["done", "interrupted", "session-closed"]
            self._answer(job, status, None, now, state="lost", cause=why)
            self._finish(job, status, now)
        state.emitter.emit_session_closed(session, why)
        end_subscriptions(state, state.bus.subscriptions_to(session), ["done", "session-closed"])
        self.pool.refill(now)

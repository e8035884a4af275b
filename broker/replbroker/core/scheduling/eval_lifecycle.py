"""The life of an eval that has a slot: sent to its worker, finished, interrupted; and the end of one that waits.

An eval runs in the epoch it was sent for or not at all. When the worker is lost, the evals queued behind it end too,
because they count on its variables.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from replbroker.core.effects import ToWorker
from replbroker.core.scheduling.eval_queue import EvalQueue
from replbroker.core.scheduling.inflight_requests import InflightRequests
from replbroker.core.scheduling.outcomes import COUNTED_AS, STATUS_OF
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.sessions.eval_task import EvalTask, WorkerRequest
from replbroker.core.sessions.session import ADOPTING, CLOSED, IDLE, Session
from replbroker.core.state import BrokerState
from replwire.faults import RequestError
from replwire.link import CancelBody, FrameKind, encode, pack

TIMEOUT: Final = "timeout"
KILLED: Final = "killed"
_KILL_S = 5.0  # for a worker to kill its interpreter, and to go on from a checkpoint


class SessionEnder(Protocol):
    """The ends of sessions and workers, as far as the life of an eval leads to them."""

    def lose_worker(self, session: Session, cause: str, now: float, *, timed_out: bool = False) -> None:
        """End the epoch of a session whose worker is dead or has to be."""

    def close(self, session: Session, why: str, now: float) -> None:
        """End a session."""


class EvalLifecycle:
    """Moves evals from their slot to their end."""

    def __init__(
        self, state: BrokerState, queue: EvalQueue, pool: WorkerPool, inflight: InflightRequests, ender: SessionEnder
    ) -> None:
        self._state = state
        self._queue = queue
        self._pool = pool
        self._inflight = inflight
        self._ender = ender

    # --- begin ---

    def start(self, task: EvalTask, now: float) -> None:
        """Run an eval that has a slot, as soon as its session has a worker."""
        session = task.session
        session.running = task
        if session.state is IDLE:
            self.dispatch(task, now)
            return
        task.state = EvalTask.STARTING
        if session.needs_worker:
            self._pool.acquire(session, now)

    def dispatch(self, task: EvalTask, now: float) -> None:
        """Send an eval to its worker."""
        session, state = task.session, self._state
        session.transition("dispatch")
        task.state, task.started_at = EvalTask.RUNNING, now
        assert session.worker is not None
        frame = pack(FrameKind.REQUEST, task.body or b"", epoch=session.epoch, eval=task.eval_id, route=task.route)
        state.effects.append(ToWorker(session.worker, frame))
        state.changes.evals[task] = None
        self.set_time_limit(task, now)
        state.emitter.emit_eval_started(task, now)
        if session.deferred:
            self._inflight.flush(session, task.eval_id)

    def set_time_limit(self, task: EvalTask, now: float) -> None:
        """Interrupt a running eval when its time is over, which may be the case already."""
        assert task.started_at is not None
        when = max(now, task.started_at + task.time_limit.ms / 1000)
        task.deadline = self._state.deadlines.call_at(when, lambda at: self._on_time_limit(task, at))

    def advance(self, session: Session, now: float) -> None:
        """Go on after an eval of the session has ended: start its next one, or close an ephemeral session."""
        if session.ephemeral and not session.is_occupied and not session.inflight:
            self._ender.close(session, "ephemeral", now)
        elif session.queue and (task := self._queue.promote(session)) is not None:
            self.start(task, now)

    # --- end ---

    def on_eval_finished(self, task: EvalTask, outcome: int, now: float) -> None:
        """End a running eval whose worker has sent its final message."""
        task.session.transition("finish")
        self.finish(task, STATUS_OF[outcome], now)
        self._state.counts[COUNTED_AS[outcome]] += 1

    def finish(self, task: EvalTask, status: list[str], now: float) -> None:
        """End an eval that has a slot: its session goes on, and the slot goes to the next in turn."""
        session = task.session
        session.running = None
        self._complete(task, status, now)
        if session.state is not CLOSED and (session.queue or session.ephemeral):
            self.advance(session, now)
        for following in self._queue.release_slot(task):
            self.start(following, now)

    def end_waiting(self, task: EvalTask, status: list[str], err: str | None, now: float, **fields: Any) -> None:
        """End an eval that has no slot."""
        self._queue.remove(task)
        self.reply_final(task, status, err, now, **fields)
        self._complete(task, status, now)

    def _complete(self, task: EvalTask, status: list[str], now: float) -> None:
        state, session = self._state, task.session
        if task.peer is None and task.started_at is not None and task.op != "hibernate":
            task.is_unread = not any(each.eval_id == task.eval_id for each in session.inflight.values())
        state.deadlines.cancel(task.deadline)
        if task.wait_deadline is not None:
            state.deadlines.cancel(task.wait_deadline)
        if task.hook_deadline is not None:
            state.deadlines.cancel(task.hook_deadline)
        state.routes.pop(task.route, None)
        self.detach_client(task)
        task.state, task.status, task.body, task.request = EvalTask.DONE, status, None, None
        state.changes.evals[task] = None
        if len(session.evals) > state.limits.max_history:
            session.trim_evals(state.limits.max_history)
        if task.started_at is not None:
            task.duration_ms = round((now - task.started_at) * 1000, 3)
        state.emitter.emit_eval_finished(task)
        if session.deferred:
            self._fail_deferred(task)
        if task.op != "hibernate":
            session.last_active = now

    def _fail_deferred(self, task: EvalTask) -> None:
        """Answer the requests that wait for an eval which never starts."""
        for request in [each for each in task.session.deferred if each.eval_id == task.eval_id]:
            self._inflight.finish(request)
            err = f"eval {task.eval_id} ended ({' '.join(task.status)}) and never ran"
            error = RequestError("eval-not-found", err, eval_id=task.eval_id)
            self._state.reply_error(request.peer, request.request_id, error)

    def detach_client(self, task: EvalTask) -> None:
        """Let an eval go on without a client that waits for its result."""
        if task.peer is not None:
            key = (task.peer, task.request_id)
            if self._state.by_request.get(key) is task:  # else the client has used its id again
                del self._state.by_request[key]
            task.peer = None

    def reply_final(self, task: EvalTask, status: list[str], err: str | None, now: float, **fields: Any) -> None:
        """Send a final message that the broker writes itself, because the worker cannot."""
        session = task.session
        duration = None if task.started_at is None else round((now - task.started_at) * 1000, 3)
        self._state.reply(
            task.peer,
            task.request_id,
            status=status,
            err=err,
            eval_id=task.eval_id,
            epoch=session.epoch,
            ephemeral=True if session.ephemeral else None,
            duration_ms=duration,
            **fields,
        )
        self._state.emitter.record_broker_final(task, err, fields.get("cause"), fields.get("state"))

    def on_request_finished(self, request: WorkerRequest, now: float) -> None:
        """End a request in flight that was answered."""
        self._inflight.finish(request)
        if request.session.ephemeral and request.session.state is not CLOSED:
            self.advance(request.session, now)

    # --- interrupts and time limits ---

    def interrupt(self, task: EvalTask, by: str, now: float) -> None:
        """Cancel an eval on request: a waiting one ends at once, the code of a running one is interrupted."""
        self._state.emitter.emit_interrupt_requested(task, by)
        if task.state is EvalTask.RUNNING:
            task.cancel_reason = task.cancel_reason or "interrupt"
            self._send_cancel(task, CancelBody())
        elif task.state is EvalTask.STARTING:
            self.reply_final(task, ["done", "interrupted"], None, now, state="kept")
            self.finish(task, ["done", "interrupted"], now)
        elif task.state is EvalTask.QUEUED:
            self.end_waiting(task, ["done", "interrupted"], None, now, state="kept")
            self.advance(task.session, now)

    def resume(self, task: EvalTask, now: float) -> None:
        """Go on with an eval that has been at its worker all the time."""
        task.session.transition("dispatch")
        self.set_time_limit(task, now)
        if task.cancel_reason is not None:
            self._send_cancel(task, CancelBody())

    def _send_cancel(self, task: EvalTask, body: CancelBody) -> None:
        session = task.session
        if session.state is ADOPTING:  # it is sent when the worker is back
            return
        assert session.worker is not None
        frame = pack(FrameKind.CANCEL, encode(body), epoch=session.epoch, eval=task.eval_id, route=task.route)
        self._state.effects.append(ToWorker(session.worker, frame))

    def _on_time_limit(self, task: EvalTask, now: float) -> None:
        """Interrupt code that has used up its time, and have it killed after the grace period.

        The worker kills its interpreter: it sends what the code has printed, and goes on from a checkpoint if there is
        one. A worker that does not react is killed itself.
        """
        state = self._state
        if task.cancel_reason not in (TIMEOUT, KILLED):
            task.cancel_reason = TIMEOUT
            state.emitter.emit_interrupt_requested(task, "time-limit")
            self._send_cancel(task, CancelBody(limit_ms=task.time_limit.ms, hint=task.time_limit.hint()))
            grace = state.limits.interrupt_grace_ms / 1000
            task.deadline = state.deadlines.call_at(now + grace, lambda at: self._on_time_limit(task, at))
            return
        cause = f"killed: it ignored the interrupt at its time limit of {task.time_limit.ms} ms"
        if task.cancel_reason == TIMEOUT:
            task.cancel_reason = KILLED
            self._send_cancel(task, CancelBody(kill=cause))
            task.deadline = state.deadlines.call_at(now + _KILL_S, lambda at: self._on_time_limit(task, at))
            return
        self._ender.lose_worker(task.session, cause, now, timed_out=True)

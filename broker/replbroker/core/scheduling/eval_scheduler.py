"""The scheduler: accepts evals, and starts sessions' workers. An eval waits for its session, then for a slot."""

from __future__ import annotations

from typing import Any

from replbroker.core.effects import Peer
from replbroker.core.limits.fair_semaphore import SlotRequest
from replbroker.core.limits.time_limits import time_limit
from replbroker.core.scheduling.adoption import Adoption
from replbroker.core.scheduling.environment_switch import EnvironmentSwitch
from replbroker.core.scheduling.eval_queue import EvalQueue
from replbroker.core.scheduling.hook_gate import HookGate
from replbroker.core.scheduling.inflight_requests import InflightRequests
from replbroker.core.scheduling.rollbacks import Rollbacks
from replbroker.core.scheduling.session_teardown import SessionTeardown
from replbroker.core.sessions.eval_task import EvalTask, ReadyWaiter
from replbroker.core.sessions.session import STARTING, Session
from replbroker.core.state import BrokerState
from replwire.faults import clip
from replwire.link import AssignedBody
from replwire.ops import Queueable

_QUEUED_NOTICE_S = 0.01  # shorter waits are not worth a message


class EvalScheduler:
    """The way in: evals are submitted here, and workers report here that they are a session's.

    Attributes:
        queue: Waiting evals.
        lifecycle: Evals that have a slot.
        teardown: The ends of sessions and workers.
        pool: All workers.
        inflight: Other requests in flight to workers.
        rollbacks: Sessions that go on from a checkpoint.
        switch: Changes of environment.
        hooks: Evals that wait for a verdict of the hooks.
        adoption: Workers of the broker before this one.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.queue = EvalQueue(state)
        self.inflight = InflightRequests(state)
        self.teardown = SessionTeardown(state, self.queue, self.inflight)
        self.pool = self.teardown.pool
        self.lifecycle = self.teardown.lifecycle
        self.rollbacks = Rollbacks(state, self.teardown)
        self.switch = EnvironmentSwitch(state, self.teardown)
        self.hooks = HookGate(state, self.lifecycle)
        self.adoption = Adoption(state, self.teardown)

    # --- evals ---

    def submit(self, session: Session, request: Queueable, peer: Peer, body: bytes, now: float) -> EvalTask:
        """Accept an eval, and start it if its session and a slot are free.

        Args:
            session: The session it runs in.
            request: The typed request.
            peer: The client to answer.
            body: The request as it came, for the worker.
            now: Seconds, monotonic.

        Raises:
            RequestError: `memory-limit-reached`, or `concurrency-limit-reached` when the eval would have to wait and
                may not.
        """
        state, limits = self._state, self._state.limits
        state.memory.check(session.owner)
        limit = time_limit(request, limits, state.config.agents.rule(request.agent, request.binding))
        holder = state.access.holder_of(request, peer)
        slot_request = SlotRequest(holder, limit.ms > limits.max_eval_time_ms)
        has_slot = (
            not session.is_occupied
            and not state.config.has_hooks
            and session.replacement is None
            and state.semaphore.try_acquire(slot_request)
        )
        if not has_slot:
            self.queue.check_room(holder)
        task = EvalTask(session, state.new_route(), peer, slot_request, request, limit, now)
        task.body = body
        if limit.notice is not None:
            state.reply(peer, request.id, notice=limit.notice)
        state.routes[task.route] = state.by_request[peer, request.id] = task
        session.last_active = now
        session.evals.append(task)
        state.changes.evals[task] = None
        if state.config.has_hooks:
            self.hooks.request_verdict(task, request, now)
        elif request.in_history:
            session.add_history(task, request.summary())
        state.emitter.emit_eval_accepted(task, request)
        if has_slot:
            self.lifecycle.start(task, now)
        else:
            self._enqueue(task, request, now)
        if request.wait_ms is not None:
            when = now + min(request.wait_ms, limits.max_wait_ms) / 1000
            task.wait_deadline = state.deadlines.call_at(when, lambda _: self._wait_timed_out(task))
        return task

    def _enqueue(self, task: EvalTask, request: Queueable, now: float) -> None:
        self.queue.add(task)
        self.lifecycle.advance(task.session, now)
        if task.state is not EvalTask.QUEUED:
            return
        self.limit_wait(task, request, now)
        when = now + _QUEUED_NOTICE_S
        task.queued_notice = self._state.deadlines.call_at(when, lambda _: self._notify_queued(task))

    def limit_wait(self, task: EvalTask, request: Queueable, now: float) -> None:
        """End an eval if it still waits for its turn after the longest time that it may."""
        wait_ms = self._state.limits.max_queue_wait_ms
        if request.timeout_ms is not None and request.wait_ms is None:
            wait_ms = min(wait_ms, request.timeout_ms)
        when = now + wait_ms / 1000
        task.deadline = self._state.deadlines.call_at(when, lambda at: self._queue_timed_out(task, wait_ms, at))

    def _notify_queued(self, task: EvalTask) -> None:
        session = task.session
        if task.hook_deadline is not None and session.running is None and session.queue[0] is task:
            return  # it waits for hooks alone, and not for long
        position = session.position(task, len(self._state.semaphore))
        self._state.reply(task.peer, task.request_id, status=["queued"], queue_position=position, eval_id=task.eval_id)
        self._state.emitter.emit_eval_queued(task, position)

    def _queue_timed_out(self, task: EvalTask, wait_ms: int, now: float) -> None:
        err = f"eval timed out after {wait_ms} ms in the queue and never ran"
        hint = "it waited for another eval of the session, or for a free slot"
        status = ["done", "error", "timeout"]
        self.lifecycle.end_waiting(task, status, err, now, state="kept", max_eval_time_ms=wait_ms, hint=hint)
        self.lifecycle.advance(task.session, now)

    def _wait_timed_out(self, task: EvalTask) -> None:
        self._state.reply(
            task.peer,
            task.request_id,
            status=["done", "running"],
            eval_id=task.eval_id,
            epoch=task.session.epoch,
            session=task.session.id,
            name=task.session.name,
            queue_position=self.queue.position(task),
        )
        self.lifecycle.detach_client(task)

    # --- workers ---

    def on_assigned(self, session: Session, assigned: AssignedBody, now: float) -> None:
        """Handle a worker's answer to its assignment: its session can go on, or cannot be had so."""
        if session.state != STARTING:
            return
        if assigned.error is not None:
            code = "invalid-request"
            if session.snapshot is not None:
                code = "clone-failed" if session.snapshot.version is None else "snapshot-failed"
            code = "checkpoint-failed" if session.is_new_branch else code
            code = "snapshot-failed" if session.hibernated is not None else code
            self.teardown.on_start_failed(session, clip(assigned.error), now, code=code)
            return
        self._state.deadlines.cancel(session.start_deadline)
        session.start_deadline = None
        session.executable = assigned.executable
        if session.replaces is not None:
            self.switch.commit(session, now)
            return
        self.pool.delete_snapshot(session)
        if session.hibernated is not None:
            self._state.emitter.emit_session_resumed(session, session.hibernated, assigned)
            self.teardown.delete_stored(session)
        session.transition("assigned")
        session.was_ready, session.lost_cause, session.cwd_unavailable = True, None, assigned.notice is not None
        self._state.changes.touch_session(session)
        for waiter in session.waiters:
            self._answer_waiter(waiter, session, assigned)
        session.waiters.clear()
        if session.running is not None:
            if assigned.notice is not None:
                self._state.reply(session.running.peer, session.running.request_id, notice=assigned.notice)
            self.lifecycle.dispatch(session.running, now)
        self.inflight.flush(session, 0)

    def _answer_waiter(self, waiter: ReadyWaiter, session: Session, assigned: AssignedBody) -> None:
        copied: dict[str, Any] = {}
        if waiter.snapshot is not None:
            skipped = [*waiter.snapshot.skipped, *assigned.skipped]
            copied = {"count": assigned.restored, "bytes": waiter.snapshot.bytes}
            copied |= {"skipped": skipped, "new_session": session.id if waiter.is_clone else None}
        if waiter.branched is not None:
            copied = {"checkpoint": waiter.branched.checkpoint, "branch_of": session.branch_of}
            copied |= {"not_restored": waiter.branched.not_restored or None, "new_session": session.id}
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
            notice=assigned.notice or session.notice,
            trusted=False if waiter.created and not copied else None,
            **copied,
        )

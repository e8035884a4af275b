"""Waiting evals: first in the queue of their session, then for a slot. Only the first of a session waits for a slot."""

from __future__ import annotations

from replbroker.core.limits.quotas import QUEUE, Holder
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState


class EvalQueue:
    """The queues of all sessions. Every method that frees a slot or a place returns the evals that have a slot now."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def check_room(self, holder: Holder) -> None:
        """Raise RequestError when an eval on this account may not wait."""
        state = self._state
        if state.semaphore.capacity == 0:
            raise state.limit_error("concurrency-limit-reached", "max-concurrent-evals", "Too many concurrent evals")
        no_queue = not min(state.limits.max_queued_evals, state.limits.max_queued_total)
        if no_queue and state.config.has_hooks and not state.quotas.used_by(QUEUE, holder.identity):
            return  # every eval waits for its hooks, if only for a moment
        state.quotas.check(QUEUE, holder, queue_position=state.quotas.total(QUEUE))

    def add(self, task: EvalTask) -> None:
        """Put an eval at the end of its session's queue."""
        task.session.queue.append(task)
        self._state.quotas.charge(QUEUE, task.slot_request.holder)

    def promote(self, session: Session) -> EvalTask | None:
        """Bring the session's next eval to the semaphore, unless hooks still have to allow it.

        Returns:
            The eval if it has a slot now.
        """
        queue = session.queue
        if not queue or session.running is not None or session.next_up is not None or session.replacement is not None:
            return None
        if queue[0].hook_deadline is not None:
            return None
        task = queue.popleft()
        if self._state.semaphore.acquire(task.slot_request, task):
            self._forget(task)
            return task
        session.next_up = task
        return None

    def release_slot(self, task: EvalTask) -> list[EvalTask]:
        """Give an eval's slot back."""
        admitted = self._state.semaphore.release(task.slot_request)
        return self._admit(admitted) if admitted else admitted

    def fill(self) -> list[EvalTask]:
        """Give out slots that a change of the limits has made free."""
        return self._admit(self._state.semaphore.fill())

    def _admit(self, tasks: list[EvalTask]) -> list[EvalTask]:
        for task in tasks:
            task.session.next_up = None
            self._forget(task)
        return tasks

    def remove(self, task: EvalTask) -> None:
        """Take out an eval that waits."""
        session = task.session
        if session.next_up is task:
            session.next_up = None
            self._state.semaphore.cancel(task.slot_request, task)
        else:
            session.queue.remove(task)
        self._forget(task)

    def _forget(self, task: EvalTask) -> None:
        self._state.quotas.release(QUEUE, task.slot_request.holder)
        self._state.deadlines.cancel(task.deadline)
        self._state.deadlines.cancel(task.queued_notice)
        task.deadline = task.queued_notice = None

    def position(self, task: EvalTask) -> int | None:
        """Return how many evals go before this one; None once it has a slot, though its worker may still start."""
        if task.state is not EvalTask.QUEUED:
            return None
        return task.session.position(task, len(self._state.semaphore))

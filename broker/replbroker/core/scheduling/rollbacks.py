"""Rollbacks: a session's interpreter was replaced by a checkpoint of it, by request or because it died.

The worker decides, and reports what it has done. The session keeps its worker, in the next epoch.
"""

from __future__ import annotations

from typing import Any

from replbroker.core.effects import ToWorker
from replbroker.core.scheduling.eval_lifecycle import KILLED
from replbroker.core.scheduling.session_teardown import Ending, SessionTeardown
from replbroker.core.scheduling.worker import Worker
from replbroker.core.sessions.eval_task import EvalTask, WorkerRequest
from replbroker.core.sessions.session import BUSY, Session
from replbroker.core.state import BrokerState
from replwire.faults import RequestError, clip
from replwire.link import FrameKind, ResumeBody, RolledBackBody, encode, pack

_MAX_LISTED = 100  # evals in a reply or event


class Rollbacks:
    """Ends the epochs of sessions that go on from a checkpoint."""

    def __init__(self, state: BrokerState, teardown: SessionTeardown) -> None:
        self._state = state
        self._teardown = teardown

    def on_rolled_back(
        self, worker: Worker, session: Session, request: WorkerRequest | None, body: RolledBackBody, now: float
    ) -> None:
        """Answer everything that counted on the state that is gone, and let the session go on.

        Args:
            worker: The session's worker.
            session: The session.
            request: The `rollback` that asked for it; None after a crash.
            body: The worker's report.
            now: Seconds, monotonic.
        """
        state = self._state
        state.records.raise_epoch(session)
        running = session.running
        for task in session.mark_undone(body.undone, body.redone):
            state.changes.evals[task] = None
        listed = body.undone[-_MAX_LISTED:]
        cause = None if body.cause is None else clip(body.cause)
        has_client = any(task.peer is not None for task in (running, *session.waiting_evals()) if task)
        resume = pack(FrameKind.RESUME, encode(ResumeBody(cause is not None and not has_client)), epoch=session.epoch)
        state.effects.append(ToWorker(worker.number, resume))
        state.emitter.emit_session_rolled_back(session, body, cause)
        if request is not None:
            self._teardown.inflight.finish(request)
        shown = {"state": "rolled-back", "checkpoint": body.checkpoint, "undone_evals": listed}
        not_restored = [clip(each) for each in body.not_restored] or None
        ending = self._ending(session, body, cause, shown | {"not_restored": not_restored})
        if session.replacement is not None:
            self._teardown.cancel_replacement(session.replacement, ending.error)
        for task in session.waiting_evals():
            state.idempotency.forget(task)  # it never ran
        if session.state == BUSY:
            session.transition("finish")
        self._teardown.answer_all(session, ending, now)
        if request is not None:
            state.reply(
                request.peer,
                request.request_id,
                status=["done"],
                session=session.id,
                name=session.name,
                epoch=session.epoch,
                checkpoint_name=body.name,
                redone_evals=body.redone[-_MAX_LISTED:] or None,
                not_restored=not_restored,
                **shown,
            )
        if running is None:
            self._teardown.lifecycle.advance(session, now)

    def _ending(self, session: Session, body: RolledBackBody, cause: str | None, shown: dict[str, Any]) -> Ending:
        """Return the answers to the running eval and to those that waited for it."""
        label = str(body.checkpoint) if body.name is None else f"{body.checkpoint} ({body.name})"
        err = f"session rolled back to checkpoint {label}" + ("" if cause is None else f": {cause}")
        error = RequestError("session-reset", err, cause=cause, epoch=session.epoch, **shown)
        task = session.running
        if task is None or task.eval_id > body.last_eval:
            never_ran = f"{err}; this eval was queued and never ran"
            return Ending(error, cause, ["done", "error", "session-reset"], never_ran, {}, shown)
        if cause is None:
            self._state.counts["evals.interrupted"] += 1
            return Ending(error, cause, ["done", "interrupted"], None, {}, shown)
        return self._crash_ending(task, error, cause, shown)

    def _crash_ending(self, task: EvalTask, error: RequestError, cause: str, shown: dict[str, Any]) -> Ending:
        if task.cancel_reason != KILLED:
            self._state.counts["evals.lost"] += 1
            return Ending(error, cause, ["done", "error", "worker-lost"], f"worker lost: {cause}", {}, shown)
        self._state.counts["evals.timeout"] += 1
        fields = self._teardown.timeout_fields(task)
        message = f"eval timed out after {task.time_limit.ms} ms"
        return Ending(error, cause, ["done", "error", "timeout"], message, fields, shown)

"""The event emitter: turns changes of evals, sessions and workers into events and metrics."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from replbroker.core.effects import WorkerSpec
from replbroker.core.observing.eval_ends import build_finished, classify_end
from replbroker.core.observing.event_bus import EventBus
from replbroker.core.observing.metrics import Metrics
from replbroker.core.observing.state_event_emitter import StateEventEmitter
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.output_summary import OutputSummary, head_utf8
from replbroker.core.sessions.session import Session
from replwire import events
from replwire.faults import RequestError
from replwire.limits import Limits
from replwire.link import (
    FrameKind,
    Header,
    Outcome,
)
from replwire.ops import Queueable

_REJECTION_INTERVAL_S = 1.0  # between two events about errors of one kind
_MAX_REJECTION_KINDS = 1000  # counted at once
_POLICY_ERRORS = ("forbidden", "plan-mode", "runtime-not-allowed", "path-not-allowed", "unauthorized")


class EventEmitter(StateEventEmitter):
    """Emits events on the bus. Every method is cheap without listeners, and builds constant fields late."""

    def __init__(self, bus: EventBus, limits: Limits) -> None:
        super().__init__(bus, Metrics())
        self.limits = limits
        self._rejections: OrderedDict[tuple[str, str | None], tuple[float, int]] = OrderedDict()

    # --- evals ---

    def emit_eval_accepted(self, task: EvalTask, request: Queueable) -> None:
        """Emit that an eval was accepted."""
        if not self._bus.has_listeners:
            task.session.event_buffer.seq += 1
            return
        task.output_summary = OutputSummary(self.limits.event_text_bytes)
        self._bus.emit(events.EvalAccepted, task.session, lambda: self._build_accepted(task, request))

    def _build_accepted(self, task: EvalTask, request: Queueable) -> dict[str, Any]:
        return {
            "eval": task.eval_id,
            "agent": task.agent_label,
            "op": request.op,
            "epoch": task.epoch,
            "limit_ms": task.time_limit.ms,
            "request_id": task.request_id,
            "traceparent": request.traceparent,
            **({} if task.hide_code else self._code(request)),
        }

    def _code(self, request: Queueable | None) -> dict[str, Any]:
        code = "" if request is None else request.summary()
        kept = head_utf8(code, self.limits.event_text_bytes)
        return {"code": kept, "code_truncated": len(kept) < len(code)}

    def emit_eval_queued(self, task: EvalTask, position: int) -> None:
        """Emit that an eval waits."""
        self._bus.emit(events.EvalQueued, task.session, eval=task.eval_id, agent=task.agent_label, position=position)

    def emit_eval_started(self, task: EvalTask, now: float) -> None:
        """Emit that an eval was sent to its worker."""
        session, waited = task.session, now - task.submitted_at
        self.metrics.queue_seconds.add(waited)
        if not self._bus.has_listeners:
            session.event_buffer.seq += 1
        else:
            self._bus.emit(
                events.EvalStarted,
                session,
                eval=task.eval_id,
                agent=task.agent_label,
                worker=session.worker or 0,
                queue_wait_ms=round(waited * 1000, 3),
                **(self._code(task.request) if task.hide_code else {}),
            )
        if "session/busy" in self._bus.live_types:
            self._bus.emit(events.SessionBusy, session, eval=task.eval_id)

    def observe_reply(self, task: EvalTask, header: Header, body: memoryview) -> None:
        """Take in a worker's reply to an eval: the events report what the client gets.

        Args:
            task: The eval.
            header: The header of the frame.
            body: Its body: one message, or value and final message one after the other.
        """
        summary = task.output_summary
        if header.outcome != Outcome.NONE:
            if summary is not None:
                summary.final, summary.value = bytes(body[header.first :]), bytes(body[: header.first])
            return
        is_text = header.kind == FrameKind.OUTPUT
        for each in (body[: header.first], body[header.first :]) if header.first else (body,):
            if summary is not None:
                summary.add(bytes(each), text=is_text)
            if "eval/output" in self._bus.live_types:
                reply = events.as_raw_json(each)
                if reply is not None:
                    self._bus.emit(
                        events.EvalOutput, task.session, eval=task.eval_id, agent=task.agent_label, reply=reply
                    )

    @staticmethod
    def record_broker_final(task: EvalTask, err: str | None, cause: str | None, state: str | None) -> None:
        """Take in a final message that the broker writes itself, because the worker cannot."""
        if task.output_summary is not None:
            task.output_summary.set_broker_final(err, cause, state)

    def emit_eval_finished(self, task: EvalTask) -> None:
        """Emit that an eval is over, and its session may run the next."""
        end = "ok" if task.status == ["done"] else classify_end(task.status)
        self.metrics.evals_ended[end] += 1
        if task.duration_ms is not None:
            self.metrics.run_seconds.add(task.duration_ms / 1000)
        summary = task.output_summary
        if summary is None:  # there was no listener when it began
            if not self._bus.has_listeners:
                task.session.event_buffer.seq += 1
                return
            summary = OutputSummary(self.limits.event_text_bytes)
        if "eval/output-end" in self._bus.live_types:
            self._bus.emit(
                events.EvalOutputEnd, task.session, eval=task.eval_id, messages=summary.messages, bytes=summary.bytes
            )
        self._bus.emit(events.EvalFinished, task.session, lambda: build_finished(task, end, summary))
        task.output_summary = None
        if task.started_at is not None and "session/idle" in self._bus.live_types:
            self._bus.emit(events.SessionIdle, task.session)

    def emit_interrupt_requested(self, task: EvalTask, by: str) -> None:
        """Emit that an eval is to be interrupted."""
        self._bus.emit(events.EvalInterruptRequested, task.session, eval=task.eval_id, agent=task.agent_label, by=by)

    # --- sessions ---

    def emit_session_created(self, session: Session) -> None:
        """Emit that a session was created."""
        self._bus.emit(
            events.SessionCreated,
            session,
            agent=session.agent,
            name=session.name,
            runtime=session.spec.runtime,
            environment=session.spec.environment,
            cwd=session.cwd,
            owner=session.owner,
            ephemeral=session.ephemeral,
            epoch=session.epoch,
            project=session.project,
        )

    def emit_session_adopted(self, session: Session) -> None:
        """Emit that a session goes on with the worker that it had before this broker."""
        running = None if session.running is None else session.running.eval_id
        self._bus.emit(events.SessionAdopted, session, epoch=session.epoch, running=running)

    def emit_session_lost(self, session: Session, cause: str, code: str) -> None:
        """Emit that a session has lost its worker, or was reset: its epoch is over."""
        if code == "session-reset":
            self._bus.emit(events.SessionReset, session, reason=cause, epoch=session.epoch)
        else:
            self._bus.emit(events.SessionLost, session, why=cause, epoch=session.epoch)

    def emit_file_written(self, session: Session, agent: str | None, file: str, size: int) -> None:
        """Emit that a client has put a file into a session."""
        self._bus.emit(events.FileWritten, session, agent=agent, file=file, bytes=size)

    def emit_session_moved(self, session: Session) -> None:
        """Emit that a session has a worker in another environment."""
        self._bus.emit(
            events.SessionMoved,
            session,
            environment=session.spec.environment,
            executable=session.executable,
            epoch=session.epoch,
        )

    def emit_session_closed(self, session: Session, why: str) -> None:
        """Emit that a session has ended."""
        self._bus.emit(events.SessionClosed, session, reason=why)

    # --- workers and the broker ---

    def emit_worker_spawned(self, worker: int, spec: WorkerSpec) -> None:
        """Emit that a worker process is started."""
        self._bus.emit(events.WorkerSpawned, worker=worker, runtime=spec.runtime, environment=spec.environment)

    def emit_worker_ready(self, worker: int, seconds: float) -> None:
        """Emit that a worker's interpreter is up, after so many seconds."""
        self.metrics.worker_starts.add(seconds)
        self._bus.emit(events.WorkerReady, worker=worker, start_ms=round(seconds * 1000, 3))

    def emit_worker_exited(self, worker: int, cause: str, session: Session | None) -> None:
        """Emit that a worker is dead, or is being killed."""
        self._bus.emit(events.WorkerExited, worker=worker, cause=cause, of=None if session is None else session.id)

    def emit_rejection(self, error: RequestError, agent: str | None, now: float) -> None:
        """Emit that a request was refused by a limit, a rule or a right; of one kind once in a while, with a count."""
        limit = error.fields.get("limit")
        if limit is None and error.code not in _POLICY_ERRORS:
            return
        key = error.code, agent
        since, count = self._rejections.get(key, (now - _REJECTION_INTERVAL_S, 0))
        count += 1
        if now - since < _REJECTION_INTERVAL_S:
            self._rejections[key] = since, count
            return
        self._rejections[key] = now, 0
        if len(self._rejections) > _MAX_REJECTION_KINDS:
            self._rejections.popitem(last=False)
        if limit is not None:
            self._bus.emit(
                events.AdmissionRefused,
                agent=agent,
                code=error.code,
                limit=limit,
                limit_value=error.fields["limit_value"],
                err=error.message,
                count=count,
            )
        else:
            self._bus.emit(
                events.PolicyDecision, agent=agent, verdict="block", code=error.code, reason=error.message, count=count
            )

"""What happened to evals, sessions and workers, put into words: from the core's records to events."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from replbroker.core.effects import WorkerSpec
from replbroker.core.observing.event_bus import EventBus
from replbroker.core.observing.metrics import Metrics
from replbroker.core.sessions.output_summary import OutputSummary, head_utf8
from replbroker.core.sessions.session import EvalTask, Session
from replwire import events
from replwire.faults import RequestError, find_fault
from replwire.limits import Limits
from replwire.link import SnapshotBody
from replwire.ops import Queueable

_REJECTION_INTERVAL_S = 1.0  # between two events about refusals of one kind
_MAX_REJECTION_KINDS = 1000  # of refusals that are counted at once
_POLICY_ERRORS = ("forbidden", "plan-mode", "runtime-not-allowed", "path-not-allowed", "unauthorized")
_DEATH_ERRORS = ("worker-lost", "session-reset")


def eval_end(words: list[str]) -> events.EvalStatus:
    """How an eval ended, in one word, from the status of its answer."""
    if "interrupted" in words:
        return "cancelled"
    if "error" not in words:
        return "ok"
    fault = find_fault(words)
    if fault is None:
        return "error"
    return "timeout" if fault.code == "timeout" else "died" if fault.code in _DEATH_ERRORS else "refused"


def _build_finished(job: EvalTask, heard: OutputSummary) -> dict[str, Any]:
    return {
        "eval": job.eval_id,
        "agent": job.label,
        "status": eval_end(job.status),
        "words": job.status,
        "duration_ms": job.duration,
        "epoch": job.epoch,
        **heard.summary(),
    }


class EventEmitter:
    """Tells the bus. Every method is cheap while nobody listens, and what stays as it is, is put together later."""

    def __init__(self, bus: EventBus, limits: Limits) -> None:
        self._bus = bus
        self.limits = limits
        self.metrics = Metrics()
        self._rejections: OrderedDict[tuple[str, str | None], tuple[float, int]] = OrderedDict()

    # --- evals ---

    def emit_eval_accepted(self, job: EvalTask, request: Queueable) -> None:
        """An eval was taken in."""
        if not self._bus.has_listeners:
            self._bus.buffer_of(job.session).seq += 1
            return
        job.heard = OutputSummary(self.limits.event_text_bytes)
        self._bus.emit(events.EvalAccepted, job.session, lambda: self._build_accepted(job, request))

    def _build_accepted(self, job: EvalTask, request: Queueable) -> dict[str, Any]:
        return {
            "eval": job.eval_id,
            "agent": job.label,
            "op": request.op,
            "epoch": job.epoch,
            "limit_ms": job.limit_ms,
            "request_id": job.request_id,
            "traceparent": request.traceparent,
            **({} if job.withheld else self._code(request)),
        }

    def _code(self, request: Queueable | None) -> dict[str, Any]:
        code = "" if request is None else request.summary()
        kept = head_utf8(code, self.limits.event_text_bytes)
        return {"code": kept, "code_truncated": len(kept) < len(code)}

    def emit_eval_queued(self, job: EvalTask, position: int) -> None:
        """It waits."""
        self._bus.emit(events.EvalQueued, job.session, eval=job.eval_id, agent=job.label, position=position)

    def emit_eval_started(self, job: EvalTask, now: float) -> None:
        """Its worker has it."""
        self.metrics.queue_seconds.add(now - job.submitted)
        self._bus.emit(
            events.EvalStarted,
            job.session,
            eval=job.eval_id,
            agent=job.label,
            worker=job.session.worker or 0,
            queue_wait_ms=round((now - job.submitted) * 1000, 3),
            **(self._code(job.request) if job.withheld else {}),
        )
        if "session/busy" in self._bus.live_types:
            self._bus.emit(events.SessionBusy, job.session, eval=job.eval_id)

    def emit_output(self, job: EvalTask, body: bytes | memoryview, *, text: bool) -> None:
        """A message for its client that is not its end."""
        if job.heard is not None:
            job.heard.add(bytes(body), text=text)
        if "eval/output" in self._bus.live_types:
            reply = events.as_raw_json(body)
            if reply is not None:
                self._bus.emit(events.EvalOutput, job.session, eval=job.eval_id, agent=job.label, reply=reply)

    @staticmethod
    def record_final(job: EvalTask, last: bytes | memoryview, value: bytes | memoryview = b"") -> None:
        """What its worker says at its end: kept for `finished`."""
        if job.heard is not None:
            job.heard.set_final(bytes(last), bytes(value))

    @staticmethod
    def record_broker_final(job: EvalTask, err: str | None, cause: str | None, state: str | None) -> None:
        """The same when the broker says it, because the worker cannot."""
        if job.heard is not None:
            job.heard.set_broker_final(err, cause, state)

    def emit_eval_finished(self, job: EvalTask) -> None:
        """It is over, and its session may run the next."""
        self.metrics.evals_ended[eval_end(job.status)] += 1
        if job.duration is not None:
            self.metrics.run_seconds.add(job.duration / 1000)
        heard = job.heard
        if heard is None:  # nobody listened when it began
            if not self._bus.has_listeners:
                self._bus.buffer_of(job.session).seq += 1
                return
            heard = OutputSummary(self.limits.event_text_bytes)
        if "eval/output-end" in self._bus.live_types:
            self._bus.emit(
                events.EvalOutputEnd, job.session, eval=job.eval_id, messages=heard.messages, bytes=heard.bytes
            )
        self._bus.emit(events.EvalFinished, job.session, lambda: _build_finished(job, heard))
        job.heard = None
        if job.started is not None and "session/idle" in self._bus.live_types:
            self._bus.emit(events.SessionIdle, job.session)

    def emit_interrupt_requested(self, job: EvalTask, by: str) -> None:
        """Somebody wants it to stop."""
        self._bus.emit(events.EvalInterruptRequested, job.session, eval=job.eval_id, agent=job.label, by=by)

    # --- sessions ---

    def emit_session_created(self, session: Session) -> None:
        """A session was opened."""
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

    def emit_session_forked(self, session: Session, source: Session, dumped: SnapshotBody) -> None:
        """It begins with another one's names."""
        left = [each.name for each in dumped.left_behind]
        self._bus.emit(events.SessionForked, session, source=source.id, count=dumped.count, left_behind=left[:100])

    def emit_session_lost(self, session: Session, cause: str, word: str) -> None:
        """Its worker is gone, and its epoch over."""
        if word == "session-reset":
            self._bus.emit(events.SessionReset, session, reason=cause, epoch=session.epoch)
        else:
            self._bus.emit(events.SessionLost, session, why=cause, epoch=session.epoch)

    def emit_session_moved(self, session: Session) -> None:
        """It has a worker in another environment."""
        self._bus.emit(
            events.SessionMoved,
            session,
            environment=session.spec.environment,
            executable=session.executable,
            epoch=session.epoch,
        )

    def emit_session_closed(self, session: Session, why: str) -> None:
        """It is gone."""
        self._bus.emit(events.SessionClosed, session, reason=why)

    # --- workers and the broker ---

    def emit_worker_spawned(self, worker: int, spec: WorkerSpec) -> None:
        """A worker process is started."""
        self._bus.emit(events.WorkerSpawned, worker=worker, runtime=spec.runtime, environment=spec.environment)

    def emit_worker_ready(self, worker: int, seconds: float) -> None:
        """It took this long until its interpreter was up."""
        self.metrics.worker_starts.add(seconds)
        self._bus.emit(events.WorkerReady, worker=worker, start_ms=round(seconds * 1000, 3))

    def emit_worker_exited(self, worker: int, cause: str, session: Session | None) -> None:
        """It is dead, or is being killed."""
        self._bus.emit(events.WorkerExited, worker=worker, cause=cause, of=None if session is None else session.id)

    def emit_rejection(self, refusal: RequestError, agent: str | None, now: float) -> None:
        """A request was not served: an event when that was for a limit, a rule or a right."""
        limit = refusal.fields.get("limit")
        if limit is None and refusal.code not in _POLICY_ERRORS:
            return
        key = refusal.code, agent
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
                word=refusal.code,
                limit=limit,
                limit_value=refusal.fields["limit_value"],
                err=refusal.message,
                count=count,
            )
        else:
            self._bus.emit(
                events.PolicyDecision,
                agent=agent,
                verdict="block",
                word=refusal.code,
                reason=refusal.message,
                count=count,
            )

"""What happened to evals, sessions and workers, put into words: from the core's records to events."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from replbroker.core.bus import Bus
from replbroker.core.effects import Spec
from replbroker.core.figures import Figures
from replbroker.core.heard import Heard, cut_end
from replbroker.core.session import Job, Session
from replwire import events
from replwire.faults import Refusal, fault_in
from replwire.limits import Limits
from replwire.link import Dumped
from replwire.ops import Runs

_PAUSE_S = 1.0  # between two events about refusals of one kind
_MAX_KINDS = 1000  # of refusals that are counted at once
_POLICY = ("forbidden", "plan-mode", "runtime-not-allowed", "path-not-allowed", "unauthorized")
_DIED = ("worker-lost", "session-reset")


def end_of(words: list[str]) -> events.End:
    """How an eval ended, in one word, from the status of its answer."""
    if "interrupted" in words:
        return "cancelled"
    if "error" not in words:
        return "ok"
    fault = fault_in(words)
    if fault is None:
        return "error"
    return "timeout" if fault.word == "timeout" else "died" if fault.word in _DIED else "refused"


def _finished(job: Job, heard: Heard) -> dict[str, Any]:
    return {
        "eval": job.eval_id,
        "agent": job.label,
        "status": end_of(job.status),
        "words": job.status,
        "duration_ms": job.duration,
        "epoch": job.epoch,
        **heard.summary(),
    }


class News:
    """Tells the bus. Every method is cheap while nobody listens, and what stays as it is, is put together later."""

    def __init__(self, bus: Bus, limits: Limits) -> None:
        self._bus = bus
        self.limits = limits
        self.figures = Figures()
        self._refusals: OrderedDict[tuple[str, str | None], tuple[float, int]] = OrderedDict()

    # --- evals ---

    def accepted(self, job: Job, request: Runs) -> None:
        """An eval was taken in."""
        if not self._bus.wanted:
            self._bus.ring(job.session).seq += 1
            return
        job.heard = Heard(self.limits.event_text_bytes)
        self._bus.tell(events.EvalAccepted, job.session, lambda: self._accepted(job, request))

    def _accepted(self, job: Job, request: Runs) -> dict[str, Any]:
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

    def _code(self, request: Runs | None) -> dict[str, Any]:
        code = "" if request is None else request.summary()
        kept = cut_end(code, self.limits.event_text_bytes)
        return {"code": kept, "code_truncated": len(kept) < len(code)}

    def queued(self, job: Job, position: int) -> None:
        """It waits."""
        self._bus.tell(events.EvalQueued, job.session, eval=job.eval_id, agent=job.label, position=position)

    def started(self, job: Job, now: float) -> None:
        """Its worker has it."""
        self.figures.waited.add(now - job.submitted)
        self._bus.tell(
            events.EvalStarted,
            job.session,
            eval=job.eval_id,
            agent=job.label,
            worker=job.session.worker or 0,
            queue_wait_ms=round((now - job.submitted) * 1000, 3),
            **(self._code(job.request) if job.withheld else {}),
        )
        if "session/busy" in self._bus.live:
            self._bus.tell(events.SessionBusy, job.session, eval=job.eval_id)

    def shown(self, job: Job, body: bytes | memoryview, *, text: bool) -> None:
        """A message for its client that is not its end."""
        if job.heard is not None:
            job.heard.add(bytes(body), text=text)
        if "eval/output" in self._bus.live:
            reply = events.raw(body)
            if reply is not None:
                self._bus.tell(events.EvalOutput, job.session, eval=job.eval_id, agent=job.label, reply=reply)

    @staticmethod
    def ends(job: Job, last: bytes | memoryview, value: bytes | memoryview = b"") -> None:
        """What its worker says at its end: kept for `finished`."""
        if job.heard is not None:
            job.heard.end(bytes(last), bytes(value))

    @staticmethod
    def answered(job: Job, err: str | None, cause: str | None, state: str | None) -> None:
        """The same when the broker says it, because the worker cannot."""
        if job.heard is not None:
            job.heard.say(err, cause, state)

    def finished(self, job: Job) -> None:
        """It is over, and its session may run the next."""
        self.figures.ended[end_of(job.status)] += 1
        if job.duration is not None:
            self.figures.ran.add(job.duration / 1000)
        heard = job.heard
        if heard is None:  # nobody listened when it began
            if not self._bus.wanted:
                self._bus.ring(job.session).seq += 1
                return
            heard = Heard(self.limits.event_text_bytes)
        if "eval/output-end" in self._bus.live:
            self._bus.tell(
                events.EvalOutputEnd, job.session, eval=job.eval_id, messages=heard.messages, bytes=heard.bytes
            )
        self._bus.tell(events.EvalFinished, job.session, lambda: _finished(job, heard))
        job.heard = None
        if job.started is not None and "session/idle" in self._bus.live:
            self._bus.tell(events.SessionIdle, job.session)

    def interrupting(self, job: Job, by: str) -> None:
        """Somebody wants it to stop."""
        self._bus.tell(events.EvalInterruptRequested, job.session, eval=job.eval_id, agent=job.label, by=by)

    # --- sessions ---

    def created(self, session: Session) -> None:
        """A session was opened."""
        self._bus.tell(
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

    def forked(self, session: Session, source: Session, dumped: Dumped) -> None:
        """It begins with another one's names."""
        left = [each.name for each in dumped.left_behind]
        self._bus.tell(events.SessionForked, session, source=source.id, count=dumped.count, left_behind=left[:100])

    def lost(self, session: Session, cause: str, word: str) -> None:
        """Its worker is gone, and its epoch over."""
        if word == "session-reset":
            self._bus.tell(events.SessionReset, session, reason=cause, epoch=session.epoch)
        else:
            self._bus.tell(events.SessionLost, session, why=cause, epoch=session.epoch)

    def moved(self, session: Session) -> None:
        """It has a worker in another environment."""
        self._bus.tell(
            events.SessionMoved,
            session,
            environment=session.spec.environment,
            executable=session.executable,
            epoch=session.epoch,
        )

    def closed(self, session: Session, why: str) -> None:
        """It is gone."""
        self._bus.tell(events.SessionClosed, session, reason=why)

    # --- workers and the broker ---

    def spawned(self, worker: int, spec: Spec) -> None:
        """A worker process is started."""
        self._bus.tell(events.WorkerSpawned, worker=worker, runtime=spec.runtime, environment=spec.environment)

    def ready(self, worker: int, seconds: float) -> None:
        """It took this long until its interpreter was up."""
        self.figures.worker_starts.add(seconds)
        self._bus.tell(events.WorkerReady, worker=worker, start_ms=round(seconds * 1000, 3))

    def exited(self, worker: int, cause: str, session: Session | None) -> None:
        """It is dead, or is being killed."""
        self._bus.tell(events.WorkerExited, worker=worker, cause=cause, of=None if session is None else session.id)

    def refused(self, refusal: Refusal, agent: str | None, now: float) -> None:
        """A request was not served: an event when that was for a limit, a rule or a right."""
        limit = refusal.more.get("limit")
        if limit is None and refusal.word not in _POLICY:
            return
        key = refusal.word, agent
        since, count = self._refusals.get(key, (now - _PAUSE_S, 0))
        count += 1
        if now - since < _PAUSE_S:
            self._refusals[key] = since, count
            return
        self._refusals[key] = now, 0
        if len(self._refusals) > _MAX_KINDS:
            self._refusals.popitem(last=False)
        if limit is not None:
            self._bus.tell(
                events.AdmissionRefused,
                agent=agent,
                word=refusal.word,
                limit=limit,
                limit_value=refusal.more["limit_value"],
                err=refusal.err,
                count=count,
            )
        else:
            self._bus.tell(
                events.PolicyDecision, agent=agent, verdict="block", word=refusal.word, reason=refusal.err, count=count
            )

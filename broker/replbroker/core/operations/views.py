"""What the broker shows of itself: lists and snapshots, as the answers of `ls-sessions`, `jobs`, `info` and `stats`."""

from __future__ import annotations

from typing import Any

import msgspec

from replbroker.core.limits.quotas import QUEUE, SESSIONS
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.sessions.session import EvalTask, HistoryItem, Session
from replbroker.core.state import BrokerState
from replwire.replies import HistoryEntry, JobEntry, SessionEntry

MAX_IDENTITIES = 100  # that are shown or counted by name


def session_entry(state: BrokerState, session: Session, now: float, reference: str | None = None) -> SessionEntry:
    """A session's line in the list; `reference` is what means it for whoever reads that."""
    return SessionEntry(
        session=session.id,
        name=session.name,
        state=session.state,
        runtime=session.spec.runtime,
        epoch=session.epoch,
        created=state.to_iso(session.created_at),
        created_at=state.to_unix(session.created_at),
        last_activity=_last_activity(state, session, now),
        eval_count=session.eval_count,
        queued=len(session.waiting_evals()),
        running=_running(session),
        owner=session.owner,
        agent=session.agent,
        cwd=session.cwd,
        project=session.project,
        environment=session.spec.environment,
        session_mode=session.mode,
        ref=reference or session.id,
    )


def job_entry(state: BrokerState, job: EvalTask, now: float) -> JobEntry:
    """An eval's line in the list of its session."""
    duration = job.duration
    if duration is None and job.started is not None:
        duration = round((now - job.started) * 1000, 3)
    return JobEntry(
        eval_id=job.eval_id,
        state=job.state,
        status=job.status,
        epoch=job.epoch,
        agent=job.label,
        submitted=state.to_iso(job.submitted),
        started=None if job.started is None else state.to_iso(job.started),
        duration_ms=duration,
        code=job.code,
    )


def history_entry(state: BrokerState, one: HistoryItem, now: float) -> HistoryEntry:
    """An eval's entry in the history of its session."""
    entry = job_entry(state, one.job, now)
    return HistoryEntry(
        eval_id=entry.eval_id,
        code=one.code,
        status=entry.status,
        epoch=entry.epoch,
        agent=entry.agent,
        submitted=entry.submitted,
        duration_ms=entry.duration_ms,
    )


def info(state: BrokerState, session: Session, now: float) -> dict[str, Any]:
    """The broker's part of `info`; the worker adds process, memory and variables."""
    return {
        "session": session.id,
        "name": session.name,
        "runtime": session.spec.runtime,
        "environment": session.spec.environment,
        "session-mode": session.mode,
        "owner": session.owner,
        "shares": dict(session.shares),
        "offered-to": session.offered_to,
        "agent": session.agent,
        "cwd": session.cwd,
        "project": session.project,
        "env": [pair.split("=", 1)[0] for pair in session.env],
        "epoch": session.epoch,
        "state": session.state,
        "eval-count": session.eval_count,
        "queued": len(session.waiting_evals()),
        "acts-as": state.acts_as(session.owner if session.worker is None else session.opened_for or session.owner),
        "running": _running(session),
        "sandbox": _sandbox(state, session),
        "memory": _memory(state, session),
        "created": state.to_iso(session.created_at),
        "last-activity": _last_activity(state, session, now),
        "limits": msgspec.to_builtins(session.limits),
    }


def stats(state: BrokerState, staff: WorkerPool, now: float, identity: str | None = None) -> dict[str, Any]:
    """Counters and what is held at the moment, as far as it is this identity's to see; without one: all."""
    return {
        "sessions": len(state.sessions),
        "connections": len(state.connections),
        "slots": {"taken": state.semaphore.in_use, "of": state.semaphore.capacity},
        "queued": {"total": state.quotas.total(QUEUE), "by-agent": queued_by_agent(state, identity)},
        "quotas": quotas(state, identity),
        "workers": staff.count_by_state(),
        "memory": state.memory.as_stats(),
        "troubles": list(state.problems),
        "counts": dict(state.counts),
        "deadlines": len(state.deadlines),
        "routes": len(state.routes),
        "unanswered": len(state.audit),
        "started": state.to_iso(state.config.started),
        "uptime-ms": round((now - state.config.started) * 1000),
    }


def queued_by_agent(state: BrokerState, identity: str | None = None) -> dict[str, int]:
    """How many evals wait, by agent: those of one identity by their labels, or all, those of others than the broker's
    own user with their identity before it."""
    own = state.config.broker_user if identity is None else identity
    return {
        holder.agent if holder.identity == own else f"{holder.identity}/{holder.agent}": count
        for holder, count in state.quotas.by_holder(QUEUE).items()
        if identity in (None, holder.identity)
    }


def quotas(state: BrokerState, identity: str | None = None) -> dict[str, Any]:
    """What an identity holds and may hold, or all of them do, those with the most sessions first."""
    if identity is not None:
        return {identity: state.quotas.show(identity)}
    most = sorted(state.quotas.identities(), key=lambda each: (-state.quotas.used_by(SESSIONS, each), each))
    return {each: state.quotas.show(each) for each in most[:MAX_IDENTITIES]}


def _running(session: Session) -> int | None:
    return session.running.eval_id if session.running is not None else None


def _last_activity(state: BrokerState, session: Session, now: float) -> str:
    return state.to_iso(now if session.is_occupied else session.last_active)


def _sandbox(state: BrokerState, session: Session) -> Any:
    shown = state.config.sandbox.show()
    if session.spec.sandbox_overrides is None or isinstance(shown, str):
        return shown
    asked = msgspec.json.decode(session.spec.sandbox_overrides)
    return shown | {"tighter": {key: value for key, value in asked.items() if value is not None}}


def _memory(state: BrokerState, session: Session) -> dict[str, int | None]:
    """What the worker cannot know: the session's limit, and what is left beyond it. It adds what is used."""
    return {
        "used": 0,  # a session without a worker has no process
        "limit": state.config.sandbox.memory_limit(session.spec.sandbox_overrides),
        "available": state.memory.available_to(session.owner),
    }

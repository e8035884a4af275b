"""Views of the broker, as the replies to `ls-sessions`, `jobs`, `history`, `info` and `stats`."""

from __future__ import annotations

from typing import Any

import msgspec

from replbroker.core.limits.quotas import QUEUE, SESSIONS
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.sessions.eval_task import EvalTask, HistoryItem
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire.replies import HibernatedEntry, HistoryEntry, JobEntry, SessionEntry

MAX_IDENTITIES = 100  # shown or counted by name


def session_entry(state: BrokerState, session: Session, now: float, reference: str | None = None) -> SessionEntry:
    """Return a session's entry in the list.

    Args:
        state: The broker's state.
        session: The session.
        now: Seconds, monotonic.
        reference: The reference to it for the reader; its id by default.
    """
    clock = state.clock
    return SessionEntry(
        session=session.id,
        name=session.name,
        state=session.state,
        runtime=session.spec.runtime,
        epoch=session.epoch,
        worker_epoch=session.worker_epoch,
        created=clock.to_iso(session.created_at),
        created_at=clock.to_unix(session.created_at),
        last_activity=_last_activity(state, session, now),
        eval_count=session.eval_count,
        queued=len(session.waiting_evals()),
        running=_running(session),
        owner=session.owner,
        agent=session.agent,
        cwd=session.cwd,
        branch_of=session.branch_of,
        hibernated=_hibernated(state, session),
        project=session.project,
        environment=session.spec.environment,
        session_mode=session.mode,
        ref=reference or session.id,
    )


def job_entry(state: BrokerState, task: EvalTask, now: float) -> JobEntry:
    """Return an eval's entry in the list of its session."""
    duration = task.duration_ms
    if duration is None and task.started_at is not None:
        duration = round((now - task.started_at) * 1000, 3)
    started = None if task.started_at is None else state.clock.to_iso(task.started_at)
    return JobEntry(
        eval_id=task.eval_id,
        state=task.state,
        status=task.status,
        epoch=task.epoch,
        agent=task.agent_label,
        submitted=state.clock.to_iso(task.submitted_at),
        started=started,
        duration_ms=duration,
        code=task.code,
        undone=task.undone,
    )


def history_entry(state: BrokerState, item: HistoryItem, now: float) -> HistoryEntry:
    """Return an eval's entry in the history of its session."""
    entry = job_entry(state, item.task, now)
    return HistoryEntry(
        eval_id=entry.eval_id,
        code=item.code,
        status=entry.status,
        epoch=entry.epoch,
        agent=entry.agent,
        submitted=entry.submitted,
        duration_ms=entry.duration_ms,
        undone=entry.undone,
    )


def info(state: BrokerState, session: Session, now: float) -> dict[str, Any]:
    """Return the broker's part of `info`. The worker adds process, memory and variables."""
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
        "branch-of": session.branch_of,
        "hibernated": _hibernated(state, session),
        "env": [pair.split("=", 1)[0] for pair in session.env],
        "epoch": session.epoch,
        "worker-epoch": session.worker_epoch,
        "state": session.state,
        "eval-count": session.eval_count,
        "queued": len(session.waiting_evals()),
        "acts-as": state.config.acts_as(
            session.owner if session.worker is None else session.worker_identity or session.owner
        ),
        "running": _running(session),
        "sandbox": _sandbox(state, session),
        "network": _network(state, session),
        "memory": _memory(state, session),
        "created": state.clock.to_iso(session.created_at),
        "last-activity": _last_activity(state, session, now),
        "limits": msgspec.to_builtins(session.limits),
    }


def stats(state: BrokerState, pool: WorkerPool, now: float, identity: str | None = None) -> dict[str, Any]:
    """Return counters and current usage.

    Args:
        state: The broker's state.
        pool: Its workers.
        now: Seconds, monotonic.
        identity: Show what this identity may see; None for everything.
    """
    return {
        "sessions": len(state.sessions),
        "connections": len(state.connections),
        "slots": {"taken": state.semaphore.in_use, "of": state.semaphore.capacity},
        "queued": {"total": state.quotas.total(QUEUE), "by-agent": queued_by_agent(state, identity)},
        "quotas": quotas(state, identity),
        "workers": pool.count_by_state(),
        "memory": state.memory.as_stats(),
        "problems": list(state.problems),
        "counts": dict(state.counts),
        "deadlines": len(state.deadlines),
        "routes": len(state.routes),
        "unanswered": len(state.audit),
        "started": state.clock.to_iso(state.config.started),
        "uptime-ms": round((now - state.config.started) * 1000),
    }


def queued_by_agent(state: BrokerState, identity: str | None = None) -> dict[str, int]:
    """Count waiting evals by agent.

    Args:
        state: The broker's state.
        identity: Count those of one identity, by its labels. None counts all; those of others than the broker's own
            user have their identity before the label.
    """
    own = state.config.broker_user if identity is None else identity
    return {
        holder.agent if holder.identity == own else f"{holder.identity}/{holder.agent}": count
        for holder, count in state.quotas.by_holder(QUEUE).items()
        if identity in (None, holder.identity)
    }


def quotas(state: BrokerState, identity: str | None = None) -> dict[str, Any]:
    """Return usage and quotas of one identity, or of all, those with the most sessions first."""
    if identity is not None:
        return {identity: state.quotas.show(identity)}
    most = sorted(state.quotas.identities(), key=lambda each: (-state.quotas.used_by(SESSIONS, each), each))
    return {each: state.quotas.show(each) for each in most[:MAX_IDENTITIES]}


def _hibernated(state: BrokerState, session: Session) -> HibernatedEntry | None:
    stored = session.hibernated
    if stored is None:
        return None
    since = state.clock.to_iso(state.clock.from_unix(stored.since))
    return HibernatedEntry(since=since, count=stored.count, bytes=stored.bytes, skipped=stored.skipped)


def _running(session: Session) -> int | None:
    return session.running.eval_id if session.running is not None else None


def _last_activity(state: BrokerState, session: Session, now: float) -> str:
    return state.clock.to_iso(now if session.is_occupied else session.last_active)


def _sandbox(state: BrokerState, session: Session) -> Any:
    shown = state.config.sandbox.show()
    if session.spec.sandbox_overrides is None or isinstance(shown, str):
        return shown
    asked = msgspec.json.decode(session.spec.sandbox_overrides)
    return shown | {"tighter": {key: value for key, value in asked.items() if value is not None}}


def _network(state: BrokerState, session: Session) -> dict[str, Any]:
    """Return what the session has reached, and what it may reach for a time beyond its list."""
    more = {entry: state.clock.to_iso(until) for entry, until in session.more_hosts.items()}
    return session.traffic.show() | ({"more-hosts": more} if more else {})


def _memory(state: BrokerState, session: Session) -> dict[str, int | None]:
    """Return the session's memory limit and what is left beyond it. The worker adds what is used."""
    return {
        "used": 0,  # a session without a worker has no process
        "limit": state.config.sandbox.memory_limit(session.spec.sandbox_overrides),
        "available": state.memory.available_to(session.owner),
    }

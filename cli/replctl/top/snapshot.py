"""One-time snapshot of a broker: plain text without colour, or one JSON object. Needs no textual."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from replctl.client.errors import ReplError
from replctl.client.sync import Client
from replctl.top import tables
from replctl.top.cell_text import Column, TableRow, plain_text, table
from replctl.top.entities import EvalRow, SessionRow
from replctl.top.model import TopModel
from replctl.top.polling import CONNECTION_FAULTS, PollSteps, identify, poll_broker
from replwire.quantities import count_of

MAX_SESSIONS = 50  # sessions polled for jobs and metrics
MAX_JOBS = 20  # finished evals to show
_WIDTH = 200  # maximum width


def take_snapshot(client: Client) -> TopModel:
    """Poll the broker once and return the model."""
    model = TopModel(client.address.endpoint)
    for steps in (identify(model), poll_broker(model, time.monotonic, MAX_SESSIONS)):
        _run(client, steps)
    left = sum(not session.jobs_known and session.evals > 0 for session in model.sessions.values())
    if left and not model.warning:
        model.warning = f"the evals of {count_of(left, 'session')} were not fetched"
    return model


def _run(client: Client, steps: PollSteps) -> None:
    try:
        ask = next(steps)
        while True:
            try:
                ask = steps.send(client.request(ask.op, **ask.fields))
            except ReplError as error:
                if error.code in CONNECTION_FAULTS:
                    raise
                ask = steps.send(error)
    except StopIteration:
        pass


def format_text(model: TopModel, now: float) -> Iterator[str]:
    """Yield the tables. CPU% needs two samples, so only the processor time is shown."""
    yield from map(plain_text, tables.broker_lines(model, 100)[:2])
    counts = model.stats.get("counts", {})
    ended = {key.removeprefix("evals."): value for key, value in counts.items() if key.startswith("evals.")}
    refused = sum(value for key, value in counts.items() if key.startswith("refused."))
    ended_text = "  ".join(f"{key} {value}" for key, value in sorted(ended.items())) or "none"
    yield f"evals {ended_text}   refused {refused}   connections {model.stats.get('connections', 0)}"
    if not model.may_introspect:
        yield f"showing what {model.identity} may see"
    if model.warning:
        yield f"incomplete: {model.warning}"
    rows = tables.session_rows(model, now)
    keep = [at for at, column in enumerate(tables.SESSIONS) if column.head != "CPU%"]
    columns = [tables.SESSIONS[at] for at in keep]
    yield from _table("sessions", columns, [TableRow(row.key, [row.cells[at] for at in keep]) for row in rows])
    yield from _table("agents", tables.AGENTS, tables.agent_rows(model))
    some = tables.job_rows(model, now)[: len(model.active) + MAX_JOBS]
    yield from _table("queue and jobs", tables.JOBS, some)


def _table(title: str, columns: Sequence[Column], rows: list[TableRow]) -> Iterator[str]:
    yield ""
    yield f"{title}: {len(rows) or 'none'}"
    if rows:
        yield from map(plain_text, table(columns, rows, _WIDTH))


def snapshot_data(model: TopModel, now: float) -> dict[str, Any]:
    """Return the snapshot as data; unknown values are null. Times are ISO 8601, UTC."""
    return {
        "status": ["done"],
        "time": _iso(model.broker_time(now)),
        "endpoint": model.endpoint,
        "version": model.version,
        "identity": model.identity,
        "all": model.may_introspect,
        "incomplete": model.warning or None,
        "broker": model.stats,
        "agents": [_kebab(agent._asdict()) for agent in tables.agents(model)],
        "sessions": [_session(model, model.sessions[row.key], now) for row in tables.session_rows(model, now)],
        "jobs": [_job(model, job, now) for job in tables.jobs(model)[: len(model.active) + MAX_JOBS]],
    }


def _kebab(facts: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in facts.items()}


def _session(model: TopModel, session: SessionRow, now: float) -> dict[str, Any]:
    job = model.running_job(session)
    return _kebab(
        {
            "session": session.id,
            "name": session.name,
            "runtime": session.runtime,
            "state": session.state,
            "epoch": session.epoch,
            "eval_count": session.evals,
            "queued": model.queued_counts()[session.id],
            "running": session.running,
            "running_ms": _ms(tables.elapsed(model, job, now)) if job else None,
            "owner": session.owner,
            "agent": session.agent,
            "session_mode": session.mode,
            "cwd": session.cwd,
            "cpu_seconds": session.usage.cpu_seconds,
            "memory_bytes": session.usage.memory_bytes,
        }
    )


def _job(model: TopModel, job: EvalRow, now: float) -> dict[str, Any]:
    never = job.state == "done" and job.duration is None
    return _kebab(
        {
            "session": job.session,
            "name": tables.label(model, job),
            "eval_id": job.eval_id,
            "state": job.state,
            "end": job.end,
            "agent": job.agent,
            "submitted": _iso(job.submitted),
            "started": None if job.started is None else _iso(job.started),
            "duration_ms": None if never else _ms(tables.elapsed(model, job, now)),
            "code": job.code,
        }
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")

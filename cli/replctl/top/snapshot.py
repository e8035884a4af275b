"""A broker at one moment: plain text without colour, or one JSON object. Needs no terminal and no textual."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from replctl.client.errors import ReplError
from replctl.client.sync import Client
from replctl.top import tables
from replctl.top.cells import Column, Row, plain, table
from replctl.top.model import Model
from replctl.top.survey import GONE, Steps, survey, who
from replctl.top.things import Job, Session

MOST_SESSIONS = 50  # that are asked for their jobs and their figures
MOST_JOBS = 20  # lines of evals that have ended
_WIDTH = 200  # no line is longer, whoever reads it


def taken(client: Client) -> Model:
    """Ask all there is to ask, once."""
    model = Model(client.address.endpoint)
    for steps in (who(model), survey(model, time.monotonic, MOST_SESSIONS)):
        _run(client, steps)
    left = sum(not session.jobs_known and session.evals > 0 for session in model.sessions.values())
    if left and not model.trouble:
        model.trouble = f"the evals of {left} sessions were not asked for"
    return model


def _run(client: Client, steps: Steps) -> None:
    try:
        ask = next(steps)
        while True:
            try:
                ask = steps.send(client.request(ask.op, **ask.fields))
            except ReplError as error:
                if error.word in GONE:
                    raise
                ask = steps.send(error)
    except StopIteration:
        pass


def text(model: Model, now: float) -> Iterator[str]:
    """Tables. CPU% needs two looks, so there is the processor time alone."""
    yield from map(plain, tables.broker_lines(model, 100)[:2])
    counts = model.stats.get("counts", {})
    ended = {key.removeprefix("evals."): value for key, value in counts.items() if key.startswith("evals.")}
    refused = sum(value for key, value in counts.items() if key.startswith("refused."))
    told = "  ".join(f"{key} {value}" for key, value in sorted(ended.items())) or "none"
    yield f"evals {told}   refused {refused}   connections {model.stats.get('connections', 0)}"
    if not model.inside:
        yield f"this is what {model.identity} may see"
    if model.trouble:
        yield f"incomplete: {model.trouble}"
    rows = tables.session_rows(model, now)
    keep = [at for at, column in enumerate(tables.SESSIONS) if column.head != "CPU%"]
    columns = [tables.SESSIONS[at] for at in keep]
    yield from _table("sessions", columns, [Row(row.key, [row.cells[at] for at in keep]) for row in rows])
    yield from _table("agents", tables.AGENTS, tables.agent_rows(model))
    some = tables.job_rows(model, now)[: len(model.active) + MOST_JOBS]
    yield from _table("queue and jobs", tables.JOBS, some)


def _table(title: str, columns: Sequence[Column], rows: list[Row]) -> Iterator[str]:
    yield ""
    yield f"{title}: {len(rows) or 'none'}"
    if rows:
        yield from map(plain, table(columns, rows, _WIDTH))


def data(model: Model, now: float) -> dict[str, Any]:
    """The same as data; what is not known is null. Times are ISO 8601, UTC."""
    return {
        "status": ["done"],
        "time": _iso(model.broker_time(now)),
        "endpoint": model.endpoint,
        "version": model.version,
        "identity": model.identity,
        "all": model.inside,
        "incomplete": model.trouble or None,
        "broker": model.stats,
        "agents": [_kebab(agent._asdict()) for agent in tables.agents(model)],
        "sessions": [_session(model, model.sessions[row.key], now) for row in tables.session_rows(model, now)],
        "jobs": [_job(model, job, now) for job in tables.jobs(model)[: len(model.active) + MOST_JOBS]],
    }


def _kebab(facts: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in facts.items()}


def _session(model: Model, session: Session, now: float) -> dict[str, Any]:
    job = model.running_job(session)
    return _kebab(
        {
            "session": session.id,
            "name": session.name,
            "runtime": session.runtime,
            "state": session.state,
            "epoch": session.epoch,
            "eval_count": session.evals,
            "queued": model.queued()[session.id],
            "running": session.running,
            "running_ms": _ms(tables.since(model, job, now)) if job else None,
            "owner": session.owner,
            "agent": session.agent,
            "session_mode": session.mode,
            "cwd": session.cwd,
            "cpu_seconds": session.usage.cpu_seconds,
            "memory_bytes": session.usage.memory_bytes,
        }
    )


def _job(model: Model, job: Job, now: float) -> dict[str, Any]:
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
            "duration_ms": None if never else _ms(tables.since(model, job, now)),
            "code": job.code,
        }
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")

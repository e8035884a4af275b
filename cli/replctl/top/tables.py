"""Tables of the model: columns, order, filter and colours. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from replctl.top.cell_text import Column, Line, TableRow, cut, pad, width_of
from replctl.top.entities import EvalRow, SessionRow
from replctl.top.formatting import format_bytes, format_number, format_span
from replctl.top.model import TopModel
from replwire.terminal import escape_control

SESSIONS = (
    Column("NAME", 12, most=32),
    Column("STATE", 8),
    Column("RUNTIME", 7, most=12, rank=2),
    Column("EPOCH", 5, right=True, rank=1),
    Column("EVALS", 5, right=True, rank=1),
    Column("WAIT", 4, right=True),
    Column("FOR", 6, right=True),
    Column("CPU%", 5, right=True),
    Column("CPU-S", 6, right=True, rank=3),
    Column("MEM", 5, right=True),
    Column("OWNER", 8, most=20, rank=2),
    Column("AGENT", 6, most=16, rank=2),
    Column("RUNS", 16, most=200, rank=4),
)
JOBS = (
    Column("STATE", 9),
    Column("FOR", 6, right=True),
    Column("SESSION", 8, most=20),
    Column("EVAL", 4, right=True),
    Column("AGENT", 6, most=16, rank=1),
    Column("CODE", 12, most=400),
)
AGENTS = (
    Column("AGENT", 10, most=32),
    Column("SESS", 4, right=True),
    Column("RUN", 3, right=True),
    Column("WAIT", 4, right=True),
    Column("CPU-S", 6, right=True),
    Column("MEM", 5, right=True),
)
BLANK = "-"
_STATES = {"busy": "bold green", "starting": "yellow", "vacant": "dim", "hibernated": "dim", "idle": ""}
_ENDS = {"ok": "", "error": "red", "died": "bold red", "timeout": "red", "cancelled": "yellow", "refused": "red"}


def elapsed(model: TopModel, job: EvalRow | None, now: float) -> float:
    """Return how long an eval has been running or waiting, or ran, in seconds."""
    if job is None:
        return 0.0
    if job.state == "done":
        return job.duration or 0.0
    return max(0.0, model.broker_time(now) - (job.started or job.submitted))


SORTS: dict[str, Callable[[TopModel, SessionRow, float], Any]] = {
    "name": lambda _, session, __: (session.name is None, session.label.lower()),
    "state": lambda _, session, __: (session.running is None, session.state, session.label.lower()),
    "for": lambda model, session, now: -elapsed(model, model.running_job(session), now),
    "cpu": lambda _, session, __: (-(session.usage.percent or 0.0), -(session.usage.cpu_seconds or 0.0)),
    "mem": lambda _, session, __: -(session.usage.memory_bytes or 0),
    "wait": lambda model, session, _: -sum(job.state == "queued" for job in model.jobs_of(session.id)),
    "evals": lambda _, session, __: -session.evals,
    "owner": lambda _, session, __: (session.owner.lower(), session.label.lower()),
    "agent": lambda _, session, __: ((session.agent or "").lower(), session.label.lower()),
}


def matches(text: str, *where: str | None) -> bool:
    """Return True if every word of the filter occurs, ignoring case."""
    whole = " ".join(filter(None, where)).lower()
    return all(word in whole for word in text.lower().split())


def session_rows(
    model: TopModel, now: float, sort: str = "name", backwards: bool = False, filter: str = ""
) -> list[TableRow]:
    """Return one row per session, keyed by id."""
    some = [
        each
        for each in model.sessions.values()
        if matches(filter, each.label, each.state, each.runtime, each.owner, each.agent, each.mode)
    ]
    some.sort(key=lambda session: SORTS[sort](model, session, now), reverse=backwards)
    queued = model.queued_counts()
    return [_session(model, session, queued[session.id], now) for session in some]


def _session(model: TopModel, session: SessionRow, queued: int, now: float) -> TableRow:
    job, usage = model.running_job(session), session.usage
    busy = session.running is not None
    state = "plan" if session.mode == "plan" and session.state in ("idle", "vacant") else session.state
    percent = usage.percent
    hot = "bold red" if (percent or 0) >= 90 else "yellow" if (percent or 0) >= 50 else ""
    name = session.label + (" (once)" if session.ephemeral else "")
    return TableRow(
        session.id,
        (
            (escape_control(name), "bold" if busy else ""),
            (state, _STATES.get(session.state, "")),
            (escape_control(session.runtime), ""),
            (str(session.epoch), "" if session.epoch == 1 else "yellow"),
            (str(session.evals), ""),
            (str(queued) if queued else BLANK, "yellow" if queued else "dim"),
            (format_span(elapsed(model, job, now)) if job else BLANK, "" if job else "dim"),
            (format_number(percent), hot) if percent is not None else (BLANK, "dim"),
            (format_number(usage.cpu_seconds), "") if usage.cpu_seconds is not None else (BLANK, "dim"),
            (format_bytes(usage.memory_bytes), "") if usage.memory_bytes is not None else (BLANK, "dim"),
            (escape_control(session.owner or BLANK), ""),
            (escape_control(session.agent or BLANK), ""),
            (job.code if job else "", "dim"),
        ),
    )


def jobs(model: TopModel, filter: str = "") -> list[EvalRow]:
    """Return running evals, longest first; queued ones in order; finished ones, newest first."""
    running = sorted((job for job in model.active.values() if job.state == "running"), key=lambda job: job.started or 0)
    queued = sorted((job for job in model.active.values() if job.state == "queued"), key=lambda job: job.submitted)
    return [
        job
        for job in (*running, *queued, *model.recent)
        if matches(filter, label(model, job), job.agent, job.state, job.end, job.code)
    ]


def label(model: TopModel, job: EvalRow) -> str:
    """Return the name of an eval's session."""
    session = model.sessions.get(job.session)
    return session.label if session is not None else job.name


def job_rows(model: TopModel, now: float, filter: str = "") -> list[TableRow]:
    """Return one row per eval."""
    return [_job(model, job, now) for job in jobs(model, filter)]


def _job(model: TopModel, job: EvalRow, now: float) -> TableRow:
    if job.state == "running":
        state, style = ("stopping", "yellow") if job.stopping else ("running", "bold green")
    elif job.state == "queued":
        state, style = f"queued {job.position}" if job.position else "queued", "yellow"
    else:
        state, style = job.end or "done", _ENDS.get(job.end or "", "")
    never = job.state == "done" and job.duration is None
    faint = "dim" if job.state == "done" and job.end == "ok" else ""
    return TableRow(
        job.key,
        (
            (state, style or faint),
            (BLANK if never else format_span(elapsed(model, job, now)), faint),
            (escape_control(label(model, job)), faint),
            (str(job.eval_id), faint),
            (escape_control(job.agent or BLANK), faint),
            (job.code, faint),
        ),
    )


class AgentRow(NamedTuple):
    """Totals of one agent. `cpu_seconds` includes workers that have exited, if the broker reports them."""

    name: str
    sessions: int
    running: int
    queued: int
    cpu_seconds: float
    memory_bytes: int


def agents(model: TopModel) -> list[AgentRow]:
    """Return agents with sessions, evals or processor time; the one without a name is last."""
    sessions, active = list(model.sessions.values()), list(model.active.values())
    cpu = model.agent_cpu or {}
    names = {session.agent or "" for session in sessions} | {job.agent or "" for job in active} | cpu.keys()
    return [_agent(name, sessions, active, cpu) for name in sorted(names, key=lambda name: (not name, name.lower()))]


def _agent(name: str, sessions: list[SessionRow], active: list[EvalRow], cpu: dict[str, float]) -> AgentRow:
    own = [session for session in sessions if (session.agent or "") == name]
    states = [job.state for job in active if (job.agent or "") == name]
    used = max(cpu.get(name, 0.0), sum(session.usage.cpu_seconds or 0.0 for session in own))
    memory = sum(session.usage.memory_bytes or 0 for session in own)
    return AgentRow(name, len(own), states.count("running"), states.count("queued"), used, memory)


def agent_rows(model: TopModel) -> list[TableRow]:
    """Return one row per agent."""
    return [
        TableRow(
            each.name,
            (
                (escape_control(each.name or BLANK), "bold" if each.running else ""),
                (str(each.sessions), ""),
                (str(each.running) if each.running else BLANK, "bold green" if each.running else "dim"),
                (str(each.queued) if each.queued else BLANK, "yellow" if each.queued else "dim"),
                (format_number(each.cpu_seconds), ""),
                (format_bytes(each.memory_bytes) if each.memory_bytes else BLANK, "" if each.memory_bytes else "dim"),
            ),
        )
        for each in agents(model)
    ]


def broker_lines(model: TopModel, width: int) -> list[Line]:
    """Return three lines about the broker."""
    stats = model.stats
    up = f"up {format_span(stats['uptime-ms'] / 1000)}" if "uptime-ms" in stats else ""
    right = "  ".join(filter(None, (model.version, up))) if model.connected else "no connection"
    title: Line = [("replctl top", "bold cyan"), ("  ", "")]
    room = max(0, width - 13 - width_of(right) - 2)
    title += [
        (pad(_endpoint(model.endpoint, room), room), "dim"),
        ("  ", ""),
        (right, "" if model.connected else "bold red"),
    ]
    return [title, _slots(model), _rates(model)]


def _endpoint(endpoint: str, room: int) -> str:
    """Shorten a long path to its end."""
    return endpoint if width_of(endpoint) <= room else "…" + endpoint[len(endpoint) - room + 1 :] if room > 8 else ""


def _slots(model: TopModel) -> Line:
    slots = model.stats.get("slots", {})
    taken, total = slots.get("taken", 0), slots.get("of", 0)
    full = 0 if not total else min(10, -(-10 * taken // total))
    style = "bold red" if total and taken >= total else "green"
    queued = model.stats.get("queued", {}).get("total", 0)
    workers = model.stats.get("workers", {})
    line: Line = [("slots ", "dim"), ("|" * full, style), ("." * (10 - full), "dim"), (f" {taken}/{total}", "bold")]
    line += _fact("queued", str(queued), "yellow" if queued else "")
    line += [("   workers ", "dim"), (f"{workers.get('assigned', 0)} assigned, {workers.get('warm', 0)} warm", "")]
    if workers.get("starting"):
        line.append((f", {workers['starting']} starting", "yellow"))
    return line


def _rates(model: TopModel) -> Line:
    refusals = model.refusals.per_second() * 60
    line: Line = [("evals ", "dim"), (f"{format_number(model.evals.per_second() * 60)}/min", "")]
    line += _fact("refused", f"{format_number(refusals)}/min", "red" if refusals else "")
    line += _fact("output", f"{format_bytes(model.output.per_second())}/s")
    line += _fact("connections", str(model.stats.get("connections", 0)))
    return line


def _fact(name: str, value: str, style: str = "") -> Line:
    return [(f"   {name} ", "dim"), (value, style)]


def clip(line: Line, width: int) -> Line:
    """Return at most `width` cells of a line."""
    found: Line = []
    for text, style in line:
        if width <= 0:
            break
        found.append((cut(text, width), style))
        width -= width_of(text)
    return found

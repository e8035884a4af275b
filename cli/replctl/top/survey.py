"""What a broker is asked to fill the model: as a generator of requests, for a client that waits and for one that does
not. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import msgspec

from replctl.client.errors import ReplError
from replctl.top.model import Model
from replwire.replies import Reply, SessionEntry

GONE = ("broker-lost", "no-broker", "shutdown")  # faults of the connection, not of a request


class Ask(NamedTuple):
    """A request."""

    op: str
    fields: dict[str, Any]


Steps = Generator[Ask, "Reply | ReplError", None]


def who(model: Model) -> Steps:
    """Once a connection: who answers, and who we are."""
    answer = yield Ask("describe", {})
    if isinstance(answer, Reply):
        model.version = (answer.versions or {}).get("replctl", "")
        model.identity = answer.identity or ""


def survey(model: Model, clock: Callable[[], float], most: int) -> Steps:
    """Sessions and figures in one request or two, then jobs and processor time of at most `most` sessions each.

    A refusal is kept in `model.trouble`; who may not `introspect` is asked less.
    """
    if model.inside:
        answer = yield Ask("introspect", {})
        if isinstance(answer, ReplError):
            model.inside = answer.word not in ("forbidden", "unauthorized")
            _refused(model, answer)
        else:
            yield from _inside(model, answer.snapshots or {}, clock)
    if not model.inside:
        answer = yield Ask("ls-sessions", {})
        _take(model, answer, lambda reply: model.told_sessions(reply.sessions or [], throw_away=False))
        answer = yield Ask("stats", {})
        _take(model, answer, lambda reply: model.told_stats(reply.stats or {}, clock()))
    yield from _details(model, clock, most)


def _inside(model: Model, parts: dict[str, Any], clock: Callable[[], float]) -> Steps:
    sessions = parts.get("sessions", {})
    rows = sessions.get("rows", [])
    if sessions.get("total", 0) > len(rows):
        answer = yield Ask("ls-sessions", {})
        _take(model, answer, lambda reply: model.told_sessions(reply.sessions or [], throw_away=False))
    else:
        model.told_sessions(msgspec.convert(rows, list[SessionEntry]), throw_away=True)
    now = clock()
    model.told_stats(parts.get("stats", {}), now)
    model.told_workers(parts.get("workers", {}).get("rows", []), now)
    model.agent_cpu = parts.get("figures", {}).get("cpu-seconds", {})


def _details(model: Model, clock: Callable[[], float], most: int) -> Steps:
    unknown = [each for each in model.sessions.values() if not each.jobs_known and (each.evals or each.running)]
    unknown.sort(key=lambda session: session.running is None)
    for session in unknown[:most]:
        answer = yield Ask("jobs", {"session": session.id})
        _take(model, answer, lambda reply, key=session.id: model.told_jobs(key, reply.jobs or []))  # type: ignore[misc]
    due = [each for each in model.sessions.values() if each.usage_due and each.state in ("idle", "busy")]
    due.sort(key=lambda session: session.running is None)
    for session in due[:most]:
        if model.sessions.pop(session.id, None) is None:
            continue
        model.sessions[session.id] = session  # at the end: the next round begins with others
        answer = yield Ask("info", {"session": session.id, "variables": False})
        _take(model, answer, lambda reply: model.told_info(reply.info or {}, clock()))


def _take(model: Model, answer: Reply | ReplError, use: Callable[[Reply], None]) -> None:
    if isinstance(answer, ReplError):
        _refused(model, answer)
    else:
        use(answer)


def _refused(model: Model, error: ReplError) -> None:
    if error.word not in ("session-not-found", "forbidden"):  # it has gone, or was never ours, in the meantime
        model.trouble = error.err
        model.changes += 1

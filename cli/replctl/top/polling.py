"""Requests that fill the model, as a generator for synchronous and asynchronous clients. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import msgspec

from replctl.client.errors import ReplError
from replctl.top.model import TopModel
from replwire.replies import Reply, SessionEntry

CONNECTION_FAULTS = ("broker-lost", "no-broker", "shutdown")  # faults of the connection, not of a request


class PollRequest(NamedTuple):
    """A request of a poll."""

    op: str
    fields: dict[str, Any]


PollSteps = Generator[PollRequest, "Reply | ReplError", None]


def identify(model: TopModel) -> PollSteps:
    """Ask once per connection for the broker's version and the caller's identity."""
    answer = yield PollRequest("describe", {})
    if isinstance(answer, Reply):
        model.version = (answer.versions or {}).get("replctl", "")
        model.identity = answer.identity or ""


def poll_broker(model: TopModel, clock: Callable[[], float], most: int) -> PollSteps:
    """Poll sessions and metrics in one or two requests, then jobs and usage of at most `most` sessions each.

    A refusal is kept in `model.warning`; a client that may not `introspect` is shown less.
    """
    if model.may_introspect:
        answer = yield PollRequest("introspect", {})
        if isinstance(answer, ReplError):
            model.may_introspect = answer.code not in ("forbidden", "unauthorized")
            _note_refusal(model, answer)
        else:
            yield from _use_snapshots(model, answer.snapshots or {}, clock)
    if not model.may_introspect:
        answer = yield PollRequest("ls-sessions", {})
        _use_reply(model, answer, lambda reply: model.update_sessions(reply.sessions or [], include_ephemeral=False))
        answer = yield PollRequest("stats", {})
        _use_reply(model, answer, lambda reply: model.update_stats(reply.stats or {}, clock()))
    yield from _details(model, clock, most)


def _use_snapshots(model: TopModel, parts: dict[str, Any], clock: Callable[[], float]) -> PollSteps:
    sessions = parts.get("sessions", {})
    rows = sessions.get("rows", [])
    if sessions.get("total", 0) > len(rows):
        answer = yield PollRequest("ls-sessions", {})
        _use_reply(model, answer, lambda reply: model.update_sessions(reply.sessions or [], include_ephemeral=False))
    else:
        model.update_sessions(msgspec.convert(rows, list[SessionEntry]), include_ephemeral=True)
    model.update_stats(parts.get("stats", {}), clock())
    model.update_workers(parts.get("workers", {}).get("rows", []))
    model.agent_cpu = parts.get("metrics", {}).get("cpu-seconds", {})


def _details(model: TopModel, clock: Callable[[], float], most: int) -> PollSteps:
    unknown = [each for each in model.sessions.values() if not each.jobs_known and (each.evals or each.running)]
    unknown.sort(key=lambda session: session.running is None)
    for session in unknown[:most]:
        answer = yield PollRequest("jobs", {"session": session.id})
        _use_reply(model, answer, lambda reply, key=session.id: model.update_jobs(key, reply.jobs or []))  # type: ignore[misc]
    due = [each for each in model.sessions.values() if each.usage_due and each.state in ("idle", "busy")]
    due.sort(key=lambda session: session.running is None)
    for session in due[:most]:
        if model.sessions.pop(session.id, None) is None:
            continue
        model.sessions[session.id] = session  # moved to the end: the next round starts with others
        answer = yield PollRequest("info", {"session": session.id, "variables": False})
        _use_reply(model, answer, lambda reply: model.update_info(reply.info or {}, clock()))


def _use_reply(model: TopModel, answer: Reply | ReplError, use: Callable[[Reply], None]) -> None:
    if isinstance(answer, ReplError):
        _note_refusal(model, answer)
    else:
        use(answer)


def _note_refusal(model: TopModel, error: ReplError) -> None:
    if error.code not in ("session-not-found", "forbidden"):  # closed in the meantime, or not visible
        model.warning = error.message
        model.revision += 1

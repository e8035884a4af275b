"""Steps that several sets share: run code, follow it, read its pages."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from replctl.client import talk
from replctl.client.calls import milliseconds
from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.client.sync import PATIENCE
from replctl.tools.base import Answer, Ask, Context, Got, Settings
from replctl.tools.told import MIMES, Told
from replwire.replies import TRUNCATED, Reply


def eval_fields(settings: Settings, code: str, session: str | None, **more: Any) -> dict[str, Any]:
    """Fields of an eval for a model: its session is opened when it is not there, in the caller's folder."""
    opening = {"if_missing": "create"} if session is not None else {}
    return {"code": code, "session": session, "cwd": settings.cwd, "mime": MIMES, **opening, **more}


def ran(op: str, fields: dict[str, Any], wait: float) -> Generator[Ask, Got, tuple[Result, Reply | None]]:
    """Run code and wait for its end at most `wait` seconds: its result, and what it said when it waits for input."""
    got = yield Ask(op, {**fields, "wait_ms": milliseconds(wait)}, PATIENCE + wait, code=True)
    if got.asking is not None:
        return got.gathering.settle(), got.asking
    return talk.result(got.gathering), None


def run(op: str, fields: dict[str, Any], context: Context, wait: float | None = None) -> Generator[Ask, Got, Answer]:
    """The same as an answer for a model."""
    wait = context.settings.wait if wait is None else wait
    result, asking = yield from ran(op, fields, wait)
    tail = yield from _tail(result, context.settings)
    return Told(result, context.settings, wait, tail).answer(asking)


def follow(
    context: Context, session: str, eval_id: int, wait: float, offset: int | None = None, grep: str | None = None
) -> Generator[Ask, Got, Answer]:
    """An eval's output and answer now or at its end. With an offset: the page that begins there, whole."""
    settings = context.settings
    if offset is not None and grep is None:
        settings = _unfolded(settings)
    fields = {
        "session": session, "eval_id": eval_id, "wait_ms": milliseconds(wait), "offset": offset, "grep": grep,
        "max_bytes": context.settings.budget if offset is not None and grep is None else None,
    }  # fmt: skip
    got = yield Ask("read", fields, PATIENCE + wait, code=False)
    result = talk.result(got.gathering)
    paged = offset is not None and bool(result.truncated) and grep is None
    if paged:  # what follows is on the next page, not lost
        result.truncated = None
    answer = Told(result, settings, wait or None).answer()
    if paged:
        answer.text += f"\n[more: read(session={session!r}, eval_id={eval_id}, offset={result.offset})]"
    return answer


def _unfolded(settings: Settings) -> Settings:
    """A page is bounded in bytes by its request; nothing of it is left out."""
    import msgspec

    return msgspec.structs.replace(settings, budget=10 * settings.budget, line=10 * settings.budget)


def _tail(result: Result, settings: Settings) -> Generator[Ask, Got, str]:
    """The end of an output that was too long to be sent live; it is kept for `read`."""
    if not result.out.endswith(TRUNCATED) or result.ephemeral or result.eval_id is None or result.state == "lost":
        return ""
    size = len(result.out.encode()) + len(result.err.encode()) + (result.dropped_bytes or 0)
    fields = {
        "session": result.session, "eval_id": result.eval_id, "stream": "out",
        "offset": max(0, size - 2 * settings.budget),
    }  # fmt: skip
    try:
        got = yield Ask("read", fields)
        return talk.result(got.gathering).out
    except ReplError:  # it has gone since; what came live is there
        return ""

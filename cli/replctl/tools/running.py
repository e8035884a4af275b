"""Steps that several sets share: run code, follow it, read its pages."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from msgspec import structs

from replctl.client import talk
from replctl.client.calls import milliseconds
from replctl.client.errors import ReplError
from replctl.client.result import Pages, Result
from replctl.client.sync import PATIENCE
from replctl.tools.base import Answer, Ask, Context, Got, Settings, Steps, request
from replctl.tools.told import MIMES, Told
from replwire.replies import TRUNCATED, Reply

MAX_READS = 16  # of one answer, each of at most `max-output-bytes`


def eval_fields(settings: Settings, code: str, session: str | None, **more: Any) -> dict[str, Any]:
    """Fields of an eval for a model: its session is opened when it is not there, in the caller's folder."""
    opening = {"if_missing": "create"} if session is not None else {}
    return {"code": code, "session": session, **settings.folder(), "mime": MIMES, **opening, **more}


def opened(session: str, settings: Settings) -> Generator[Ask, Got, dict[str, Any]]:
    """See to it that a session is there; the broker's reply."""
    return (yield from request("new-session", name=session, if_exists="reuse", **settings.folder()))


def opening(session: str, settings: Settings, steps: Callable[[], Steps]) -> Steps:
    """These steps; when there is no such session, it is opened as an eval would, and they are taken again."""
    try:
        return (yield from steps())
    except ReplError as error:
        if error.word != "session-not-found":
            raise
    reply = yield from opened(session, settings)
    answer = yield from steps()
    answer.text += f"\n[new session {session}" + (f"; {reply['notice']}]" if reply.get("notice") else "]")
    return answer


def ran(op: str, fields: dict[str, Any], wait: float) -> Generator[Ask, Got, tuple[Result, Reply | None]]:
    """Run code and wait for its end at most `wait` seconds: its result, and what it said when it waits for input."""
    wait_ms = milliseconds(wait) or 0
    got = yield Ask(op, {**fields, "wait_ms": wait_ms}, PATIENCE + wait_ms / 1000, code=True, until_input=True)
    return _so_far(got)


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
    fields = {"session": session, "eval_id": eval_id, "grep": grep}
    if offset is not None and grep is None:
        return (yield from _page(context.settings, fields, wait, offset))
    result, asking = yield from _read({**fields, "offset": offset}, wait)
    if asking is not None:
        return Told(result, context.settings, wait).answer(asking)
    whole = Pages()
    more = whole.add(result)
    for _ in range(MAX_READS):  # one read gives, or searches, at most what one answer may have
        if more:
            result, _ = yield from _read({**fields, "offset": whole.offset}, 0)
            more = whole.add(result)
    result.out, result.err = "".join(whole.out), "".join(whole.err)
    result.truncated, result.dropped_bytes = bool(whole.missing) or None, whole.missing or None
    silent = "" if grep is None else f"[no line of its output contains {grep!r}]"
    return _and_more(Told(result, context.settings, wait, silent=silent).answer(), more, result)


def _page(settings: Settings, fields: dict[str, Any], wait: float, offset: int) -> Generator[Ask, Got, Answer]:
    result, asking = yield from _read({**fields, "offset": offset, "max_bytes": settings.budget}, wait)
    more = bool(result.truncated)
    result.truncated = None  # what follows is on the next page, not lost
    # The page was bounded when it was asked for; nothing more is left out of it.
    whole = structs.replace(settings, budget=10 * settings.budget, line=10 * settings.budget)
    silent = f"[no output from byte {offset} on]"
    answer = Told(result, whole, wait, silent=silent).answer(None if more else asking)
    return _and_more(answer, more, result)


def _and_more(answer: Answer, more: bool, result: Result) -> Answer:
    if more and not result.running:  # that it goes on has been said
        answer.text += f"\n[more: read(session={result.session!r}, eval_id={result.eval_id}, offset={result.offset})]"
    return answer


def _read(fields: dict[str, Any], wait: float) -> Generator[Ask, Got, tuple[Result, Reply | None]]:
    """One read, and what its eval said when it waits for input."""
    wait_ms = milliseconds(wait) or 0
    got = yield Ask("read", {**fields, "wait_ms": wait_ms or None}, PATIENCE + wait_ms / 1000, until_input=True)
    return _so_far(got)


def _so_far(got: Got) -> tuple[Result, Reply | None]:
    if got.asking is not None:
        return got.gathering.settle(), got.asking
    return talk.result(got.gathering), None


def _tail(result: Result, settings: Settings) -> Generator[Ask, Got, str]:
    """The end of an output that was too long to be sent live; it is kept for `read`."""
    if not result.out.endswith(TRUNCATED) or result.ephemeral or result.eval_id is None or result.state == "lost":
        return ""
    size = len(result.out.encode()) + len(result.err.encode()) + (result.dropped_bytes or 0)
    fields = {
        "session": result.session,
        "eval_id": result.eval_id,
        "stream": "out",
        "offset": max(0, size - 2 * settings.budget),
    }
    try:
        got = yield Ask("read", fields)
        return talk.result(got.gathering).out
    except ReplError:  # it has gone since; what came live is there
        return ""

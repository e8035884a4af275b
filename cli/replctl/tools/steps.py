"""Steps shared by tool sets: run code, follow it, page its output."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from msgspec import structs

from replctl.client import protocol
from replctl.client.errors import ReplError
from replctl.client.flows import DEFAULT_TIMEOUT
from replctl.client.request_fields import milliseconds
from replctl.client.result import OutputPages, Result
from replctl.tools.base import ToolCall, ToolContext, ToolRequest, ToolResponse, ToolResult, ToolSettings, request
from replctl.tools.render import MIMES, EvalRenderer
from replwire.replies import TRUNCATED, Reply

MAX_READS = 16  # reads for one result, each of at most `max-output-bytes`


def model_eval_fields(settings: ToolSettings, code: str, session: str | None, **more: Any) -> dict[str, Any]:
    """Return the fields of an eval; a missing session is created in the caller's directory."""
    opening = {"if_missing": "create"} if session is not None else {}
    return {"code": code, "session": session, **settings.directory_fields(), "mime": MIMES, **opening, **more}


def ensure_session(session: str, settings: ToolSettings) -> Generator[ToolRequest, ToolResponse, dict[str, Any]]:
    """Create a session if it does not exist, and return the broker's reply."""
    return (yield from request("new-session", name=session, if_exists="reuse", **settings.directory_fields()))


def with_session(session: str, settings: ToolSettings, steps: Callable[[], ToolCall]) -> ToolCall:
    """Run steps; if the session does not exist, create it and run them again."""
    try:
        return (yield from steps())
    except ReplError as error:
        if error.code != "session-not-found":
            raise
    reply = yield from ensure_session(session, settings)
    answer = yield from steps()
    answer.text += f"\n[new session {session}" + (f"; {reply['notice']}]" if reply.get("notice") else "]")
    return answer


def run_code(
    op: str, fields: dict[str, Any], wait: float
) -> Generator[ToolRequest, ToolResponse, tuple[Result, Reply | None]]:
    """Run code and wait up to `wait` seconds. Returns the result, and the input request if the code waits for input."""
    wait_ms = milliseconds(wait) or 0
    got = yield ToolRequest(
        op, {**fields, "wait_ms": wait_ms}, DEFAULT_TIMEOUT + wait_ms / 1000, runs_code=True, until_input=True
    )
    result, asking = _partial_result(got)
    if result.offset is None and (result.running or asking is not None):  # where a read of what follows begins
        sent = result.out.removesuffix(TRUNCATED).encode() + result.err.removesuffix(TRUNCATED).encode()
        result.offset = len(sent)
    return result, asking


def run_and_render(
    op: str, fields: dict[str, Any], context: ToolContext, wait: float | None = None
) -> Generator[ToolRequest, ToolResponse, ToolResult]:
    """Run code and render the result for a model."""
    wait = context.settings.wait if wait is None else wait
    result, asking = yield from run_code(op, fields, wait)
    tail = yield from _fetch_tail(result, context.settings)
    if 0 < (result.background_bytes or 0) <= context.settings.flood and not result.ephemeral:
        result.out = (yield from _fetch_background(result)) + result.out
        result.background_bytes = None
    return EvalRenderer(result, context.settings, context.calls, wait, tail).render(asking)


def read_eval(
    context: ToolContext, session: str, eval_id: int, wait: float, offset: int | None = None, grep: str | None = None
) -> Generator[ToolRequest, ToolResponse, ToolResult]:
    """Return an eval's output and result, now or at its end; with an offset, one full page from there."""
    fields = {"session": session, "eval_id": eval_id, "grep": grep}
    if offset is not None and grep is None:
        return (yield from _read_page(context, fields, wait, offset))
    result, asking = yield from _read({**fields, "offset": offset}, wait)
    if asking is not None:
        return EvalRenderer(result, context.settings, context.calls, wait, whole=True).render(asking)
    whole = OutputPages()
    more = whole.add(result)
    for _ in range(MAX_READS):  # one read returns or searches a limited amount
        if more:
            result, _ = yield from _read({**fields, "offset": whole.offset}, 0)
            more = whole.add(result)
    result.out, result.err = "".join(whole.out), "".join(whole.err)
    result.truncated, result.dropped_bytes = bool(whole.dropped_bytes) or None, whole.dropped_bytes or None
    silent = ""
    if grep is not None:
        result.value = result.traceback = None  # a search is for lines of output
        result.notice = f"not searched: {whole.dropped_bytes} bytes, not kept" if whole.dropped_bytes else None
        result.truncated = None
        silent = f"[no line of its output contains {grep!r}]"
    answer = EvalRenderer(result, context.settings, context.calls, wait, silent=silent, whole=True).render()
    return _add_more_note(context, answer, more, result)


def answer_input(
    context: ToolContext, session: str, text: str, wait: float = 1.0
) -> Generator[ToolRequest, ToolResponse, ToolResult]:
    """Give a line to code that waits in `input()`, and wait for what it does with it."""
    line = text if text.endswith("\n") else text + "\n"
    reply = yield from request("stdin", session=session, input=line)
    if not reply.get("delivered"):
        return ToolResult(
            text=f"session {session} is not reading input now; buffered for the next read",
            structured={"status": "buffered", "session": session},
        )
    running = yield from current_eval(session)
    if running is None:
        return ToolResult(text="delivered", structured={"status": "ok", "session": session})
    return (yield from read_eval(context, session, running, wait))


def current_eval(session: str) -> Generator[ToolRequest, ToolResponse, int | None]:
    """Return the id of the running eval, or of the last one."""
    entries = (yield from request("jobs", session=session)).get("jobs") or []
    ids = [each["eval-id"] for each in entries if each["state"] == "running"] or [
        each["eval-id"] for each in entries if each["state"] == "done"
    ]
    return max(ids, default=None)


def _read_page(
    context: ToolContext, fields: dict[str, Any], wait: float, offset: int
) -> Generator[ToolRequest, ToolResponse, ToolResult]:
    settings = context.settings
    result, asking = yield from _read({**fields, "offset": offset, "max_bytes": settings.budget}, wait)
    more = bool(result.truncated) and (result.offset or 0) > offset
    result.truncated = None  # the rest is on the next page, not lost
    # The page was requested with a limit, so nothing more is left out of it.
    whole = structs.replace(settings, budget=10 * settings.budget, line=10 * settings.budget)
    silent = f"[no output from byte {offset} on]"
    answer = EvalRenderer(result, whole, context.calls, wait, silent=silent, whole=True).render(
        None if more else asking
    )
    return _add_more_note(context, answer, more, result)


def _add_more_note(context: ToolContext, answer: ToolResult, more: bool, result: Result) -> ToolResult:
    if more and not result.running and result.eval_id is not None:  # `running` already says so
        call = context.calls.read_call(result.session, result.eval_id, f"offset={result.offset}")
        answer.text += f"\n[more: {call}]" if call else "\n[more]"
    return answer


def _read(fields: dict[str, Any], wait: float) -> Generator[ToolRequest, ToolResponse, tuple[Result, Reply | None]]:
    """Read once. Returns the result, and the input request if the code waits for input."""
    wait_ms = milliseconds(wait) or 0
    got = yield ToolRequest(
        "read", {**fields, "wait_ms": wait_ms or None}, DEFAULT_TIMEOUT + wait_ms / 1000, until_input=True
    )
    return _partial_result(got)


def _partial_result(got: ToolResponse) -> tuple[Result, Reply | None]:
    if got.input_request is not None:
        return got.pending.finalize(), got.input_request
    return protocol.eval_result(got.pending), None


def _fetch_background(result: Result) -> Generator[ToolRequest, ToolResponse, str]:
    """Fetch what was printed between evals and has not been read yet."""
    try:
        got = yield ToolRequest("read", {"session": result.session, "eval_id": 0})
    except ReplError:  # the session is gone
        return ""
    text = protocol.eval_result(got.pending).out.encode()[-(result.background_bytes or 0) :].decode("utf-8", "replace")
    return f"(printed between evals: {text.rstrip()})\n" if text.strip() else ""


def _fetch_tail(result: Result, settings: ToolSettings) -> Generator[ToolRequest, ToolResponse, str]:
    """Fetch the end of an output that was too long to be sent live."""
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
        got = yield ToolRequest("read", fields)
        return protocol.eval_result(got.pending).out
    except ReplError:  # the session is gone; the live output is still shown
        return ""

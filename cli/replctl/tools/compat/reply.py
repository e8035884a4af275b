"""REPLy's eight tools, with its names, arguments and replies, for agents trained on them."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from replctl.client.result import Result
from replctl.tools.base import (
    FollowUps,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolRequest,
    ToolResponse,
    ToolResult,
    bad_arguments,
    request,
)
from replctl.tools.render import EvalRenderer, status_of
from replctl.tools.steps import ensure_session, model_eval_fields, read_eval, run_code
from replctl.tools.text_budget import clean, fold, split_budget

DEFAULT = "mcp-default"  # REPLy's name for the default session
EPHEMERAL = "ephemeral"  # REPLy's name for an ephemeral session
WAIT_SECONDS = 30.0  # REPLy's time limit of a call
Natural = Annotated[int, Meta(ge=0)]


class ReplyEvalArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_eval`."""

    code: str = ""
    session: Annotated[str, Meta(description="Name or id; `ephemeral` for an ephemeral one.")] = DEFAULT
    module: str | None = None
    timeout_ms: Annotated[int, Meta(ge=1)] | None = None
    allow_unsafe: bool = False
    eval_id: Annotated[Natural | None, Meta(description="Instead of code: wait for this eval, or read on.")] = None
    offset: Annotated[Natural | None, Meta(description="With eval_id: byte of its output to read from.")] = None


class ReplyCompleteArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_complete`."""

    code: str
    pos: int
    session: str = DEFAULT


class ReplyLookupArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_lookup`."""

    symbol: str
    module: str | None = None
    session: str = DEFAULT


class ReplyLoadFileArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_load_file`."""

    file: str
    session: str = DEFAULT


class ReplyInterruptArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_interrupt`."""

    session: str
    interrupt_id: str | None = None


class ReplyNoArgs(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments."""


class ReplyCloseArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_close_session`."""

    session: str


def eval_(a: ReplyEvalArgs, at: ToolContext) -> ToolCall:
    """Run code, or follow an eval. `allow_unsafe` has no effect: the sandbox decides what code may do."""
    if a.eval_id is not None:
        wait = min(at.settings.wait, WAIT_SECONDS)
        return (yield from read_eval(at, _session_name(a.session), a.eval_id, wait, a.offset))
    session = None if a.session == EPHEMERAL else a.session
    opening = {} if a.session in (DEFAULT, EPHEMERAL) else {"if_missing": None}  # a mistyped name opens no session
    fields = model_eval_fields(
        at.settings, a.code, session, timeout_ms=a.timeout_ms, module=a.module, allow_stdin=False, **opening
    )
    return (yield from _run("eval", fields, at))


def load_file(a: ReplyLoadFileArgs, at: ToolContext) -> ToolCall:
    """Run a file."""
    fields: dict[str, Any] = {"file": a.file, "allow_stdin": False}
    if a.session != EPHEMERAL:
        yield from _ensure_default(a.session, at)
        fields["session"] = a.session
    return (yield from _run("load-file", fields, at))


def complete(a: ReplyCompleteArgs, at: ToolContext) -> ToolCall:
    """Return completions as JSON."""
    yield from _ensure_default(a.session, at)
    reply = yield from request("complete", code=a.code, pos=a.pos, session=_session_name(a.session))
    return _json_result(at, {"completions": reply.get("completions") or []})


def lookup(a: ReplyLookupArgs, at: ToolContext) -> ToolCall:
    """Look up a name and return it as JSON."""
    yield from _ensure_default(a.session, at)
    reply = yield from request("lookup", symbol=a.symbol, module=a.module, session=_session_name(a.session))
    keys = ("found", "name", "type", "doc", "signature", "methods", "file", "line")
    return _json_result(at, {key: reply[key] for key in keys if reply.get(key) is not None})


def interrupt(a: ReplyInterruptArgs, at: ToolContext) -> ToolCall:
    """Interrupt an eval and return the interrupted ids as JSON."""
    if a.interrupt_id is not None and not a.interrupt_id.isdecimal():
        return (yield from bad_arguments(f"interrupt_id is not a number: {a.interrupt_id}"))
    number = None if a.interrupt_id is None else int(a.interrupt_id)
    reply = yield from request("interrupt", session=a.session, interrupt_id=number)
    return _json_result(at, {"interrupted": reply.get("interrupted") or []})


def new(a: ReplyNoArgs, at: ToolContext) -> ToolCall:  # noqa: ARG001
    """Open a session without a name."""
    reply = yield from request("new-session", **at.settings.directory_fields())
    return ToolResult(text=f"Session: {reply['session']}", structured={"status": "ok", "session": reply["session"]})


def sessions(a: ReplyNoArgs, at: ToolContext) -> ToolCall:  # noqa: ARG001
    """List sessions, one per line."""
    entries = (yield from request("ls-sessions")).get("sessions") or []
    lines = [each["session"] + (f" ({each['name']})" if each["name"] else "") for each in entries]
    return ToolResult(text="\n".join(lines) or "[]", structured={"status": "ok", "sessions": lines})


def close(a: ReplyCloseArgs, at: ToolContext) -> ToolCall:  # noqa: ARG001
    """Close a session."""
    yield from request("close", session=a.session)
    return ToolResult(text=f"Closed session: {a.session}", structured={"status": "ok", "session": a.session})


def _run(op: str, fields: dict[str, Any], at: ToolContext) -> ToolCall:
    """Run code and render the result with REPLy's precedence: timeout, interrupted, error, success."""
    result, _ = yield from run_code(op, fields, at.settings.wait if at.settings.wait < WAIT_SECONDS else WAIT_SECONDS)
    status = status_of(result)
    rendered = EvalRenderer(result, at.settings, at.calls).render()
    if status == "timeout":
        return ToolResult(text="Evaluation timed out", structured=rendered.structured, error=True)
    if status == "interrupted":
        return ToolResult(text="Interrupted", structured=rendered.structured, error=True)
    if status in ("running", "lost", "reset", "rolled-back"):
        return rendered
    parts = list(_blocks(result))
    rooms = split_budget([len(part) for part in parts], at.settings.budget)
    blocks = [fold(part, room, at.settings.line).text for part, room in zip(parts, rooms, strict=True)]
    return ToolResult(
        text="\n".join(blocks),
        blocks=blocks,
        structured=rendered.structured,
        images=rendered.images,
        error=rendered.error,
    )


def _blocks(result: Result) -> Iterator[str]:
    """Yield output, stderr and value, or the error and its stack."""
    for text in (result.out, result.err):
        if text:
            yield clean(text).text.rstrip("\n")
    if result.ok:
        yield f"<repr failed: {result.repr_error}>" if result.repr_error else result.value or ""
        return
    yield result.error or ""
    if result.stacktrace:
        yield "\n".join(f"{frame.func} at {frame.file}:{frame.line}" for frame in result.stacktrace)


def _session_name(session: str) -> str:
    return DEFAULT if session == EPHEMERAL else session


def _ensure_default(session: str, at: ToolContext) -> Generator[ToolRequest, ToolResponse, None]:
    """Create REPLy's default session, which always exists there."""
    if _session_name(session) == DEFAULT:
        yield from ensure_session(DEFAULT, at.settings)


def _json_result(at: ToolContext, facts: dict[str, Any]) -> ToolResult:
    return ToolResult(text=fold(json.dumps(facts), at.settings.budget, at.settings.budget).text, structured=facts)


_ANY: dict[str, Any] = {"type": "object"}
TOOLS = (
    ToolDefinition(
        name="julia_eval",
        title="Eval",
        args=ReplyEvalArgs,
        run=eval_,
        open_world=True,
        runs_code=True,
        output=_ANY,
        text="Run code in a persistent session (Python, unless the session has another runtime).",
    ),
    ToolDefinition(
        name="julia_complete",
        title="Complete",
        args=ReplyCompleteArgs,
        run=complete,
        read_only=True,
        output=_ANY,
        text="Completions of code at a position.",
    ),
    ToolDefinition(
        name="julia_lookup",
        title="Lookup",
        args=ReplyLookupArgs,
        run=lookup,
        read_only=True,
        output=_ANY,
        text="Documentation, signature and place of a name.",
    ),
    ToolDefinition(
        name="julia_load_file",
        title="Load file",
        args=ReplyLoadFileArgs,
        run=load_file,
        open_world=True,
        runs_code=True,
        output=_ANY,
        text="Run a file in a session.",
    ),
    ToolDefinition(
        name="julia_interrupt",
        title="Interrupt",
        args=ReplyInterruptArgs,
        run=interrupt,
        destructive=False,
        output=_ANY,
        text="Interrupt the code that a session runs.",
    ),
    ToolDefinition(
        name="julia_new_session",
        title="New session",
        args=ReplyNoArgs,
        run=new,
        destructive=False,
        output=_ANY,
        text="Open a session; gives its id.",
    ),
    ToolDefinition(
        name="julia_list_sessions",
        title="List sessions",
        args=ReplyNoArgs,
        run=sessions,
        read_only=True,
        output=_ANY,
        text="List sessions, one a line.",
    ),
    ToolDefinition(
        name="julia_close_session",
        title="Close session",
        args=ReplyCloseArgs,
        run=close,
        output=_ANY,
        text="Close a session; its state is lost.",
    ),
)

INSTRUCTIONS = (
    "Persistent sessions. Omitting `session` uses one that stays; `ephemeral` uses one that ends with the eval."
)
CALLS = FollowUps(read="julia_eval")

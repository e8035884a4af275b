"""REPLy's eight tools, by its names, arguments and answers, for agents that were taught them."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from replctl.client.result import Result
from replctl.tools.base import Answer, Ask, Context, Got, Image, Steps, Tool, request, wrong
from replctl.tools.running import eval_fields, opened, ran
from replctl.tools.text import clean, fold
from replctl.tools.told import Told, status_of

DEFAULT = "mcp-default"  # REPLy's alias for the session of a call that names none
EPHEMERAL = "ephemeral"  # and for none at all
WAIT_SECONDS = 30.0  # REPLy collects an answer for this long


class Eval(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_eval`."""

    code: str
    session: Annotated[str, Meta(description="Name or id; `ephemeral` for a throw-away one.")] = DEFAULT
    module: str | None = None
    timeout_ms: Annotated[int, Meta(ge=1)] | None = None
    allow_unsafe: bool = False


class Complete(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_complete`."""

    code: str
    pos: int
    session: str = DEFAULT


class Lookup(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_lookup`."""

    symbol: str
    module: str | None = None
    session: str = DEFAULT


class LoadFile(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_load_file`."""

    file: str
    session: str = DEFAULT


class Interrupt(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_interrupt`."""

    session: str
    interrupt_id: str | None = None


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments."""


class Close(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `julia_close_session`."""

    session: str


def eval_(a: Eval, at: Context) -> Steps:
    """Run code. `allow_unsafe` is taken and changes nothing: what code may do is the sandbox's matter."""
    if a.module is not None:
        return (yield from wrong("module is not supported: code runs in the session's own namespace"))
    session = None if a.session == EPHEMERAL else a.session
    fields = eval_fields(at.settings, a.code, session, timeout_ms=a.timeout_ms, allow_stdin=False)
    return (yield from _run("eval", fields, at))


def load_file(a: LoadFile, at: Context) -> Steps:
    """Run a file."""
    fields: dict[str, Any] = {"file": a.file, "allow_stdin": False}
    if a.session != EPHEMERAL:
        yield from _opened(a.session, at)
        fields["session"] = a.session
    return (yield from _run("load-file", fields, at))


def complete(a: Complete, at: Context) -> Steps:
    """Ways to go on, as JSON."""
    yield from _opened(a.session, at)
    reply = yield from request("complete", code=a.code, pos=a.pos, session=_named(a.session))
    return _payload(at, {"completions": reply.get("completions") or []})


def lookup(a: Lookup, at: Context) -> Steps:
    """What a name means, as JSON."""
    yield from _opened(a.session, at)
    reply = yield from request("lookup", symbol=a.symbol, module=a.module, session=_named(a.session))
    keys = ("found", "name", "type", "doc", "signature", "methods", "file", "line")
    return _payload(at, {key: reply[key] for key in keys if reply.get(key) is not None})


def interrupt(a: Interrupt, at: Context) -> Steps:
    """Interrupt; what was hit, as JSON."""
    if a.interrupt_id is not None and not a.interrupt_id.isdecimal():
        return (yield from wrong(f"interrupt_id is no number: {a.interrupt_id}"))
    number = None if a.interrupt_id is None else int(a.interrupt_id)
    reply = yield from request("interrupt", session=a.session, interrupt_id=number)
    return _payload(at, {"interrupted": reply.get("interrupted") or []})


def new(a: Nothing, at: Context) -> Steps:  # noqa: ARG001
    """A session without a name."""
    reply = yield from request("new-session", **at.settings.folder())
    return Answer(text=f"Session: {reply['session']}", facts={"status": "ok", "session": reply["session"]})


def sessions(a: Nothing, at: Context) -> Steps:  # noqa: ARG001
    """A line a session."""
    entries = (yield from request("ls-sessions")).get("sessions") or []
    lines = [each["session"] + (f" ({each['name']})" if each["name"] else "") for each in entries]
    return Answer(text="\n".join(lines) or "[]", facts={"status": "ok", "sessions": lines})


def close(a: Close, at: Context) -> Steps:  # noqa: ARG001
    """End a session."""
    yield from request("close", session=a.session)
    return Answer(text=f"Closed session: {a.session}", facts={"status": "ok", "session": a.session})


def _run(op: str, fields: dict[str, Any], at: Context) -> Steps:
    """REPLy's order of what an end is called: timeout, interrupted, error, success."""
    result, _ = yield from ran(op, fields, at.settings.wait if at.settings.wait < WAIT_SECONDS else WAIT_SECONDS)
    status = status_of(result)
    told = Told(result, at.settings).answer()
    if status == "timeout":
        return Answer(text="Evaluation timed out", facts=told.facts, error=True)
    if status == "interrupted":
        return Answer(text="Interrupted", facts=told.facts, error=True)
    text = told.text if status in ("running", "lost", "reset") else "\n".join(_blocks(result))
    images: list[Image] = told.images
    return Answer(
        text=fold(text, at.settings.budget, at.settings.line).text, facts=told.facts, images=images, error=told.error
    )


def _blocks(result: Result) -> Iterator[str]:
    """In the order of arrival: output, errors of the stream, value; or the error and its stack."""
    for text in (result.out, result.err):
        if text:
            yield clean(text).text.rstrip("\n")
    if result.ok:
        yield f"<repr failed: {result.repr_error}>" if result.repr_error else result.value or ""
        return
    yield result.error or ""
    if result.stacktrace:
        yield "\n".join(f"{frame.func} at {frame.file}:{frame.line}" for frame in result.stacktrace)


def _named(session: str) -> str:
    return DEFAULT if session == EPHEMERAL else session


def _opened(session: str, at: Context) -> Generator[Ask, Got, None]:
    """REPLy's default session is always there."""
    if _named(session) == DEFAULT:
        yield from opened(DEFAULT, at.settings)


def _payload(at: Context, facts: dict[str, Any]) -> Answer:
    return Answer(text=fold(json.dumps(facts), at.settings.budget, at.settings.budget).text, facts=facts)


_ANY: dict[str, Any] = {"type": "object"}
TOOLS = (
    Tool(
        name="julia_eval",
        title="Eval",
        args=Eval,
        run=eval_,
        open_world=True,
        runs_code=True,
        output=_ANY,
        text="Run code in a persistent session (Python, unless the session has another runtime).",
    ),
    Tool(
        name="julia_complete",
        title="Complete",
        args=Complete,
        run=complete,
        read_only=True,
        output=_ANY,
        text="Completions of code at a position.",
    ),
    Tool(
        name="julia_lookup",
        title="Lookup",
        args=Lookup,
        run=lookup,
        read_only=True,
        output=_ANY,
        text="Documentation, signature and place of a name.",
    ),
    Tool(
        name="julia_load_file",
        title="Load file",
        args=LoadFile,
        run=load_file,
        open_world=True,
        runs_code=True,
        output=_ANY,
        text="Run a file in a session.",
    ),
    Tool(
        name="julia_interrupt",
        title="Interrupt",
        args=Interrupt,
        run=interrupt,
        destructive=False,
        output=_ANY,
        text="Interrupt the code that a session runs.",
    ),
    Tool(
        name="julia_new_session",
        title="New session",
        args=Nothing,
        run=new,
        destructive=False,
        output=_ANY,
        text="Open a session; gives its id.",
    ),
    Tool(
        name="julia_list_sessions",
        title="List sessions",
        args=Nothing,
        run=sessions,
        read_only=True,
        output=_ANY,
        text="List sessions, one a line.",
    ),
    Tool(
        name="julia_close_session",
        title="Close session",
        args=Close,
        run=close,
        output=_ANY,
        text="Close a session; its state is gone.",
    ),
)

INSTRUCTIONS = "Persistent sessions. Omitting `session` uses one that stays; `ephemeral` uses a throw-away one."

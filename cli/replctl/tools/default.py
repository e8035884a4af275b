"""The default set: eight tools covering all operations."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from replctl.client.errors import ReplError
from replctl.client.request_fields import milliseconds
from replctl.tools import files, inspection
from replctl.tools.base import FollowUps, ToolCall, ToolContext, ToolDefinition, ToolResult, bad_arguments, request
from replctl.tools.steps import answer_input, model_eval_fields, read_eval, run_and_render, with_session
from replwire.identifiers import DEFAULT_SESSION
from replwire.ops import PackageAction

Seconds = Annotated[float, Meta(ge=0)]
Natural = Annotated[int, Meta(ge=0)]


class EvalArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `eval`."""

    code: str | None = None
    file: Annotated[str | None, Meta(description="instead of code: run this file")] = None
    reload: Annotated[bool, Meta(description="first delete what the file defined")] = False
    session: str = DEFAULT_SESSION
    runtime: Annotated[
        str | None, Meta(description="of a new session: python (default), node, bash or a Python environment")
    ] = None
    timeout: Annotated[Seconds | None, Meta(description="seconds, then interrupted; default 1 h")] = None
    wait: Annotated[Seconds | None, Meta(description="seconds until `running`; default 45")] = None
    ephemeral: bool = False
    interrupt: Annotated[bool, Meta(description="first stop what runs")] = False


class ReadArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `read`."""

    eval_id: Annotated[Natural, Meta(description="0: printed between evals")]
    session: str = DEFAULT_SESSION
    wait: Annotated[Seconds | None, Meta(description="default 45 s")] = None
    offset: Annotated[Natural | None, Meta(description="byte; a page of 4000")] = None
    grep: Annotated[str | None, Meta(description="fixed text; lines with it")] = None


class InterruptArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `interrupt`."""

    session: str = DEFAULT_SESSION
    eval_id: Natural | None = None
    all: Annotated[bool, Meta(description="queued ones too")] = False


class ResetArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `reset`."""

    session: str = DEFAULT_SESSION
    to: Annotated[str | None, Meta(description="undo: `last`, or a checkpoint's number")] = None


class SessionsArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `sessions`."""

    action: Literal["list", "new", "close", "clone", "branch", "get", "put"] = "list"
    session: str | None = None
    to: Annotated[str | None, Meta(description="name of the copy")] = None
    path: str | None = None
    text: str | None = None
    runtime: str | None = None
    cwd: str | None = None


class InfoArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `info`."""

    session: str = DEFAULT_SESSION
    what: Literal["session", "variables", "lookup", "complete", "jobs", "stack", "checkpoints", "diff"] = "session"
    name: Annotated[str | None, Meta(description="dotted name; diff: checkpoint")] = None
    code: Annotated[str | None, Meta(description="complete")] = None
    pos: int | None = None


class EnvArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `env`."""

    action: Literal["show", "activate", "deactivate", "allow-hosts", PackageAction] = "show"
    session: str = DEFAULT_SESSION
    path: Annotated[str | None, Meta(description="environment or project")] = None
    packages: list[str] = []
    wait: Seconds | None = None


class StdinArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `stdin`."""

    text: str
    session: str = DEFAULT_SESSION
    wait: Seconds = 1.0


def eval_(a: EvalArgs, at: ToolContext) -> ToolCall:
    """Run code or a file; first interrupt what the session runs, if asked to."""
    if (a.code is None) == (a.file is None):
        return (yield from bad_arguments("bad arguments: eval takes either `code` or `file`"))
    if a.interrupt and not a.ephemeral:
        with suppress(ReplError):  # a session that does not exist runs nothing
            yield from request("interrupt", session=a.session, all=True)
    timeout_ms = milliseconds(a.timeout)
    if a.file is not None:
        op = "reload-file" if a.reload else "load-file"
        load = {"file": a.file, "session": a.session, "timeout_ms": timeout_ms}
        return (yield from with_session(a.session, at.settings, lambda: run_and_render(op, load, at, a.wait)))
    session = None if a.ephemeral else a.session
    fields = model_eval_fields(at.settings, a.code or "", session, runtime=a.runtime, timeout_ms=timeout_ms)
    return (yield from run_and_render("eval", fields, at, a.wait))


def read(a: ReadArgs, at: ToolContext) -> ToolCall:
    """Wait for code, or page or search its output."""
    return read_eval(at, a.session, a.eval_id, at.settings.wait if a.wait is None else a.wait, a.offset, a.grep)


def interrupt(a: InterruptArgs, at: ToolContext) -> ToolCall:  # noqa: ARG001
    """Interrupt code and keep the state."""
    reply = yield from request("interrupt", session=a.session, interrupt_id=a.eval_id, all=a.all or None)
    hit = bool(reply.get("interrupted"))
    which = f"eval {reply['interrupted-id']} of session {a.session}" if reply.get("interrupted-id") else a.session
    rest = " and all queued evals" if a.all else ""
    nothing = "nothing is running" if a.eval_id is None else f"eval {a.eval_id} is neither running nor queued"
    text = f"interrupted {which}{rest}; its variables are kept" if hit else f"{nothing} in session {a.session}"
    return ToolResult(text=text, structured={"status": "ok", "session": a.session, "interrupted": hit})


def reset(a: ResetArgs, at: ToolContext) -> ToolCall:  # noqa: ARG001
    """Replace the worker, or roll back."""
    if a.to is not None:
        reply = yield from request("rollback", session=a.session, to=None if a.to == "last" else a.to)
        return rollback_result(reply, a.session)
    reply = yield from request("reset", session=a.session)
    return reset_result(reply, a.session)


def reset_result(reply: dict[str, Any], session: str) -> ToolResult:
    """Return the result of a reset."""
    epoch = reply.get("epoch")
    stay = f"its name is kept; {reply['notice']}" if reply.get("notice") else "name and directory are kept"
    text = f"session {session} has a fresh worker (epoch {epoch}); variables and imports are lost, {stay}"
    return ToolResult(text=text, structured={"status": "ok", "session": session, "epoch": epoch, "state": "lost"})


def rollback_result(reply: dict[str, Any], session: str) -> ToolResult:
    """Return the result of a rollback."""
    epoch, number, undone = reply.get("epoch"), reply.get("checkpoint"), reply.get("undone-evals") or []
    evals = ", ".join(map(str, undone)) or "none"
    lines = [f"session {session} is back at checkpoint {number} (epoch {epoch}); undone evals: {evals}"]
    lines += [f"[not restored: {each}]" for each in reply.get("not-restored") or []]
    facts = {"status": "ok", "session": session, "epoch": epoch, "state": "rolled-back", "undone_evals": undone}
    return ToolResult(text="\n".join(lines), structured=facts)


def sessions(a: SessionsArgs, at: ToolContext) -> ToolCall:
    """List, open, close and copy sessions."""
    if a.action == "list":
        return (yield from inspection.sessions(at))
    if a.action == "new":
        reply = yield from request(
            "new-session", name=a.session, runtime=a.runtime, if_exists="reuse", **at.settings.directory_fields(a.cwd)
        )
        name = a.session or reply["session"]
        text = f"session {name} is " + ("open" if reply.get("created") else "there already")
        if reply.get("cwd"):
            text += f", in {reply['cwd']}"
        if reply.get("notice"):
            text += f"; {reply['notice']}"
        return ToolResult(
            text=text, structured={"status": "ok", "session": name, "created": bool(reply.get("created"))}
        )
    if a.action in ("get", "put"):
        return (yield from move_file(a, at))
    if a.session is None:
        return ToolResult(text=f"{a.action} needs `session`", structured={"status": "bad-arguments"}, error=True)
    if a.action == "close":
        yield from request("close", session=a.session)
        return ToolResult(text=f"session {a.session} is closed", structured={"status": "ok", "session": a.session})
    if a.to is None:
        return ToolResult(
            text=f"{a.action} needs `to`, the name of the copy", structured={"status": "bad-arguments"}, error=True
        )
    if a.action == "branch":
        return (yield from inspection.branch(a.session, a.to))
    return (yield from inspection.clone(a.session, a.to))


def move_file(a: SessionsArgs, at: ToolContext) -> ToolCall:
    """Fetch a file of a session, or write one."""
    session = a.session or DEFAULT_SESSION
    if a.path is None or (a.action == "put") != (a.text is not None):
        return (yield from bad_arguments(f"bad arguments: {a.action} takes `path`, and put `text`"))
    if a.text is None:
        return (yield from files.get(session, a.path, at))
    return (yield from files.put(session, a.path, a.text, at))


def info(a: InfoArgs, at: ToolContext) -> ToolCall:
    """Inspect a session without changing it."""
    return inspection.INFO_QUERIES[a.what](inspection.InfoQuery(a.session, a.name, a.code, a.pos), at)


def env(a: EnvArgs, at: ToolContext) -> ToolCall:
    """Manage environment and packages."""
    fields = {"session": a.session, "action": a.action, "path": a.path, "packages": a.packages or None}
    if a.action in ("show", "activate", "deactivate"):
        return with_session(a.session, at.settings, lambda: inspection.environment(fields))
    if a.action == "allow-hosts":
        return with_session(a.session, at.settings, lambda: inspection.allow_hosts(a.session, a.packages))
    return with_session(a.session, at.settings, lambda: run_and_render("env", fields, at, a.wait))


def stdin(a: StdinArgs, at: ToolContext) -> ToolCall:
    """Answer `input()`."""
    return answer_input(at, a.session, a.text, a.wait)


def _output(**facts: str) -> dict[str, Any]:
    """Return an object schema that allows further properties."""
    kinds = {"status": "string", "session": "string", **facts}
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in kinds.items()},
        "required": ["status"],
    }


_RUN = _output(
    value="string", out="string", err="string", error="string", state="string", eval_id="integer", epoch="integer"
)

CALLS = FollowUps(read="read", stdin="stdin")
TOOLS = (
    ToolDefinition(
        name="eval",
        title="Run code",
        args=EvalArgs,
        run=eval_,
        open_world=True,
        runs_code=True,
        output=_RUN,
        text="Run code in a persistent REPL session, opened if new: a process of its own whose variables and imports "
        "stay. Gives the last expression's value, then output, images, or the error. Code that takes longer than "
        "`wait` runs on as an eval to `read`.",
    ),
    ToolDefinition(
        name="read",
        title="Read an eval",
        args=ReadArgs,
        run=read,
        read_only=True,
        runs_code=True,
        output=_RUN,
        text="Wait for an eval: its begin and end, a page or a search of its output, its full traceback.",
    ),
    ToolDefinition(
        name="interrupt",
        title="Interrupt",
        args=InterruptArgs,
        run=interrupt,
        destructive=False,
        idempotent=True,
        text="Stop what runs; variables stay.",
        output=_output(interrupted="boolean"),
    ),
    ToolDefinition(
        name="reset",
        title="Reset a session",
        args=ResetArgs,
        run=reset,
        idempotent=True,
        text="Fresh process, even if it hangs; variables are lost. With `to`: undo evals.",
        output=_output(epoch="integer"),
    ),
    ToolDefinition(
        name="sessions",
        title="Sessions",
        args=SessionsArgs,
        run=sessions,
        output=_output(sessions="array"),
        text="List, open, close sessions; clone copies variables, branch everything; get or put a file.",
    ),
    ToolDefinition(
        name="info",
        title="Look into a session",
        args=InfoArgs,
        run=info,
        read_only=True,
        text="Look without running code: the session and its sandbox, variables, documentation of a name (lookup), "
        "completions, evals (jobs), stacks.",
        output=_output(),
    ),
    ToolDefinition(
        name="env",
        title="Environment",
        args=EnvArgs,
        run=env,
        destructive=False,
        open_world=True,
        runs_code=True,
        output=_output(environment="string"),
        text="Packages or hosts; needs no network. Environment: activate restarts it.",
    ),
    ToolDefinition(
        name="stdin",
        title="Answer input()",
        args=StdinArgs,
        run=stdin,
        runs_code=True,
        output=_RUN,
        text="Answer code that waits in input(), and see what it does.",
    ),
)

INSTRUCTIONS = """\
Persistent REPL sessions. State stays until an answer says `state lost`, or `rolled-back`: some evals are undone.
reset(to="last") undoes the last eval. `default` is shared by all calls without a
session; use a name of your own for work that others must not touch.
Code is sandboxed: by default it has no network, and writes only in the project directory, which stays, and in /tmp,
which a reset empties; info() says what holds here.
Output over 4000 characters is shown as its begin and end; read() pages or searches all of it, and shows the library
frames that an error left out. If a call was cut off, info(what="jobs") lists what ran."""

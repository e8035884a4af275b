"""The default set: nine tools covering all operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from replctl.client.request_fields import milliseconds
from replctl.tools import inspection
from replctl.tools.base import ToolCall, ToolContext, ToolDefinition, ToolResult, request
from replctl.tools.steps import model_eval_fields, read_eval, run_and_render, with_session
from replwire.identifiers import DEFAULT_SESSION

Session = Annotated[str, Meta(description="Session name.")]
Seconds = Annotated[float, Meta(ge=0)]
Natural = Annotated[int, Meta(ge=0)]


class EvalArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `eval`."""

    code: str
    session: Session = DEFAULT_SESSION
    runtime: Annotated[
        str | None, Meta(description="For a new session: python, node, bash, or the path of a Python environment.")
    ] = None
    timeout: Annotated[Seconds | None, Meta(description="Seconds the code may run; then it is interrupted.")] = None
    wait: Annotated[Seconds | None, Meta(description="Seconds to wait here; then it runs on and `read` gets it.")] = (
        None
    )
    ephemeral: Annotated[bool, Meta(description="Run in an ephemeral session.")] = False


class ReadArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `read`."""

    eval_id: Annotated[Natural, Meta(description="0: output printed between evals.")]
    session: Session = DEFAULT_SESSION
    wait: Annotated[Seconds | None, Meta(description="Seconds to wait for the end.")] = None
    offset: Annotated[Natural | None, Meta(description="Byte to read a page from; without it: begin and end.")] = None
    grep: Annotated[str | None, Meta(description="Only lines that contain this text.")] = None


class InterruptArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `interrupt`."""

    session: Session = DEFAULT_SESSION
    eval_id: Annotated[Natural | None, Meta(description="Interrupt this eval, running or queued.")] = None
    all: Annotated[bool, Meta(description="Also queued evals.")] = False


class ResetArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `reset`."""

    session: Session = DEFAULT_SESSION


class SessionsArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `sessions`."""

    action: Literal["list", "new", "close", "clone"] = "list"
    session: Annotated[str | None, Meta(description="Its name; for clone, the one to copy.")] = None
    to: Annotated[str | None, Meta(description="clone: name of the copy.")] = None
    runtime: Annotated[str | None, Meta(description="new: as for eval.")] = None
    cwd: Annotated[str | None, Meta(description="new: its directory.")] = None


class InfoArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `info`."""

    session: Session = DEFAULT_SESSION
    what: Literal["session", "variables", "lookup", "complete", "jobs", "stack"] = "session"
    name: Annotated[str | None, Meta(description="lookup: dotted name.")] = None
    code: Annotated[str | None, Meta(description="complete: the code.")] = None
    pos: Annotated[int | None, Meta(description="complete: cursor, in characters; else the end.")] = None


class EnvArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `env`."""

    action: Literal["show", "activate", "deactivate", "add", "remove", "list", "install", "test"] = "show"
    session: Session = DEFAULT_SESSION
    path: Annotated[str | None, Meta(description="activate: directory of the environment or project.")] = None
    packages: Annotated[list[str], Meta(description="add, remove: their names.")] = []
    wait: Seconds | None = None


class LoadFileArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `load_file`."""

    file: str
    session: Session = DEFAULT_SESSION
    reload: Annotated[bool, Meta(description="First delete what its last load defined.")] = False
    timeout: Seconds | None = None
    wait: Seconds | None = None


class StdinArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `stdin`."""

    text: Annotated[str, Meta(description="A newline is added.")]
    session: Session = DEFAULT_SESSION
    wait: Annotated[Seconds, Meta(description="Seconds to wait for what the code does with it.")] = 1.0


def eval_(a: EvalArgs, at: ToolContext) -> ToolCall:
    """Run code."""
    session = None if a.ephemeral else a.session
    fields = model_eval_fields(at.settings, a.code, session, runtime=a.runtime, timeout_ms=milliseconds(a.timeout))
    return run_and_render("eval", fields, at, a.wait)


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
    """Replace the worker."""
    reply = yield from request("reset", session=a.session)
    return reset_result(reply, a.session)


def reset_result(reply: dict[str, Any], session: str) -> ToolResult:
    """Return the result of a reset."""
    epoch = reply.get("epoch")
    stay = f"its name is kept; {reply['notice']}" if reply.get("notice") else "name and directory are kept"
    text = f"session {session} has a fresh worker (epoch {epoch}); variables and imports are lost, {stay}"
    return ToolResult(text=text, structured={"status": "ok", "session": session, "epoch": epoch, "state": "lost"})


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
    if a.session is None:
        return ToolResult(text=f"{a.action} needs `session`", structured={"status": "bad-arguments"}, error=True)
    if a.action == "close":
        yield from request("close", session=a.session)
        return ToolResult(text=f"session {a.session} is closed", structured={"status": "ok", "session": a.session})
    if a.to is None:
        return ToolResult(
            text="clone needs `to`, the name of the copy", structured={"status": "bad-arguments"}, error=True
        )
    return (yield from inspection.clone(a.session, a.to))


def info(a: InfoArgs, at: ToolContext) -> ToolCall:
    """Inspect a session without changing it."""
    return inspection.INFO_QUERIES[a.what](inspection.InfoQuery(a.session, a.name, a.code, a.pos), at)


def env(a: EnvArgs, at: ToolContext) -> ToolCall:
    """Manage environment and packages."""
    fields = {"session": a.session, "action": a.action, "path": a.path, "packages": a.packages or None}
    if a.action in ("show", "activate", "deactivate"):
        return with_session(a.session, at.settings, lambda: inspection.environment(fields))
    return with_session(a.session, at.settings, lambda: run_and_render("env", fields, at, a.wait))


def load_file(a: LoadFileArgs, at: ToolContext) -> ToolCall:
    """Run a file."""
    op = "reload-file" if a.reload else "load-file"
    fields = {"file": a.file, "session": a.session, "timeout_ms": milliseconds(a.timeout)}
    return with_session(a.session, at.settings, lambda: run_and_render(op, fields, at, a.wait))


def stdin(a: StdinArgs, at: ToolContext) -> ToolCall:
    """Answer `input()`."""
    text = a.text if a.text.endswith("\n") else a.text + "\n"
    reply = yield from request("stdin", session=a.session, input=text)
    if not reply.get("delivered"):
        return ToolResult(
            text=f"session {a.session} is not reading input now; buffered for the next read",
            structured={"status": "buffered", "session": a.session},
        )
    running = yield from inspection.current_eval(a.session)
    if running is None:
        return ToolResult(text="delivered", structured={"status": "ok", "session": a.session})
    return (yield from read_eval(at, a.session, running, a.wait))


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

TOOLS = (
    ToolDefinition(
        name="eval",
        title="Run code",
        args=EvalArgs,
        run=eval_,
        open_world=True,
        runs_code=True,
        output=_RUN,
        text="Run code in a persistent REPL session; variables and imports stay. Gives the last expression's value, "
        "then output. Sessions are separate processes; one that is not there is opened. Long code answers "
        "`running` with an eval id, and goes on.",
    ),
    ToolDefinition(
        name="read",
        title="Read an eval",
        args=ReadArgs,
        run=read,
        read_only=True,
        runs_code=True,
        output=_RUN,
        text="Wait for an eval that runs, or page (`offset`) or search (`grep`) its output.",
    ),
    ToolDefinition(
        name="interrupt",
        title="Interrupt",
        args=InterruptArgs,
        run=interrupt,
        destructive=False,
        idempotent=True,
        text="Interrupt a session's running code; its variables are kept.",
        output=_output(interrupted="boolean"),
    ),
    ToolDefinition(
        name="reset",
        title="Reset a session",
        args=ResetArgs,
        run=reset,
        idempotent=True,
        text="Restart a session in a fresh process, even if it hangs; its variables are lost.",
        output=_output(epoch="integer"),
    ),
    ToolDefinition(
        name="sessions",
        title="Sessions",
        args=SessionsArgs,
        run=sessions,
        output=_output(sessions="array"),
        text="List sessions, open, close or clone one. A clone has copies of the variables.",
    ),
    ToolDefinition(
        name="info",
        title="Look into a session",
        args=InfoArgs,
        run=info,
        read_only=True,
        text="Look without running code: the session, its variables, documentation of a name (lookup), completions, "
        "evals (jobs), stacks of what runs.",
        output=_output(),
    ),
    ToolDefinition(
        name="env",
        title="Environment and packages",
        args=EnvArgs,
        run=env,
        destructive=False,
        open_world=True,
        runs_code=True,
        output=_output(environment="string"),
        text="A session's environment: show, activate (restarts it), add or remove packages, list, install, test.",
    ),
    ToolDefinition(
        name="load_file",
        title="Run a file",
        args=LoadFileArgs,
        run=load_file,
        open_world=True,
        runs_code=True,
        output=_RUN,
        text="Run a file in a session; its definitions are kept.",
    ),
    ToolDefinition(
        name="stdin",
        title="Answer input()",
        args=StdinArgs,
        run=stdin,
        runs_code=True,
        output=_RUN,
        text="Give a line to code that waits for input.",
    ),
)

INSTRUCTIONS = """\
Persistent REPL sessions, each an isolated process. State stays between calls until an answer says `state lost`.
Use a session of your own name for work that others must not touch; `default` is shared by all calls without a session.
Code that takes long answers `running` with an eval id: read() waits for it, interrupt() stops it, nothing is lost.
If a call was cut off, info(what="jobs") lists what ran. Print little: long output is cut in the middle and counted,
and read() pages or searches it."""

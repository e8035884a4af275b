"""The default set: nine tools, as few as serve, each doing all there is to its matter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from replctl.client.calls import milliseconds
from replctl.tools import about
from replctl.tools.base import Answer, Context, Steps, Tool, request
from replctl.tools.running import eval_fields, follow, opening, run
from replwire.names import DEFAULT_SESSION

Session = Annotated[str, Meta(description="Session name.")]
Seconds = Annotated[float, Meta(ge=0)]
Natural = Annotated[int, Meta(ge=0)]


class Eval(msgspec.Struct, forbid_unknown_fields=True):
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
    ephemeral: Annotated[bool, Meta(description="Run in a throw-away session.")] = False


class Read(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `read`."""

    eval_id: Annotated[Natural, Meta(description="0: what was printed between evals.")]
    session: Session = DEFAULT_SESSION
    wait: Annotated[Seconds | None, Meta(description="Seconds to wait for the end.")] = None
    offset: Annotated[Natural | None, Meta(description="Byte to read a page from; without it: begin and end.")] = None
    grep: Annotated[str | None, Meta(description="Only lines that contain this text.")] = None


class Interrupt(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `interrupt`."""

    session: Session = DEFAULT_SESSION
    eval_id: Annotated[Natural | None, Meta(description="This eval, running or queued.")] = None
    all: Annotated[bool, Meta(description="Also those that wait.")] = False


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `reset`."""

    session: Session = DEFAULT_SESSION


class Sessions(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `sessions`."""

    action: Literal["list", "new", "close", "clone"] = "list"
    session: Annotated[str | None, Meta(description="Its name; for clone, the one to copy.")] = None
    to: Annotated[str | None, Meta(description="clone: name of the copy.")] = None
    runtime: Annotated[str | None, Meta(description="new: as for eval.")] = None
    cwd: Annotated[str | None, Meta(description="new: its folder.")] = None


class Info(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `info`."""

    session: Session = DEFAULT_SESSION
    what: Literal["session", "variables", "lookup", "complete", "jobs", "stack"] = "session"
    name: Annotated[str | None, Meta(description="lookup: dotted name.")] = None
    code: Annotated[str | None, Meta(description="complete: the code.")] = None
    pos: Annotated[int | None, Meta(description="complete: cursor, in characters; else the end.")] = None


class Env(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `env`."""

    action: Literal["show", "activate", "deactivate", "add", "remove", "list", "install", "test"] = "show"
    session: Session = DEFAULT_SESSION
    path: Annotated[str | None, Meta(description="activate: folder of the environment or project.")] = None
    packages: Annotated[list[str], Meta(description="add, remove: their names.")] = []
    wait: Seconds | None = None


class LoadFile(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `load_file`."""

    file: str
    session: Session = DEFAULT_SESSION
    reload: Annotated[bool, Meta(description="Forget first what its last load defined.")] = False
    timeout: Seconds | None = None
    wait: Seconds | None = None


class Stdin(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `stdin`."""

    text: Annotated[str, Meta(description="A newline is added.")]
    session: Session = DEFAULT_SESSION
    wait: Annotated[Seconds, Meta(description="Seconds to wait for what the code does with it.")] = 1.0


def eval_(a: Eval, at: Context) -> Steps:
    """Run code."""
    session = None if a.ephemeral else a.session
    fields = eval_fields(at.settings, a.code, session, runtime=a.runtime, timeout_ms=milliseconds(a.timeout))
    return run("eval", fields, at, a.wait)


def read(a: Read, at: Context) -> Steps:
    """Wait for code, page or search its output."""
    return follow(at, a.session, a.eval_id, at.settings.wait if a.wait is None else a.wait, a.offset, a.grep)


def interrupt(a: Interrupt, at: Context) -> Steps:  # noqa: ARG001
    """Stop code, keep state."""
    reply = yield from request("interrupt", session=a.session, interrupt_id=a.eval_id, all=a.all or None)
    hit = bool(reply.get("interrupted"))
    which = f"eval {reply['interrupted-id']} of session {a.session}" if reply.get("interrupted-id") else a.session
    rest = " and all that waited" if a.all else ""
    nothing = "nothing runs" if a.eval_id is None else f"eval {a.eval_id} neither runs nor waits"
    text = f"interrupted {which}{rest}; its variables stay" if hit else f"{nothing} in session {a.session}"
    return Answer(text=text, facts={"status": "ok", "session": a.session, "interrupted": hit})


def reset(a: Reset, at: Context) -> Steps:  # noqa: ARG001
    """A fresh worker."""
    reply = yield from request("reset", session=a.session)
    return reset_answer(reply, a.session)


def reset_answer(reply: dict[str, Any], session: str) -> Answer:
    """What is told of a reset."""
    epoch = reply.get("epoch")
    stay = f"its name stays; {reply['notice']}" if reply.get("notice") else "name and folder stay"
    text = f"session {session} has a fresh worker (epoch {epoch}); variables and imports are gone, {stay}"
    return Answer(text=text, facts={"status": "ok", "session": session, "epoch": epoch, "state": "lost"})


def sessions(a: Sessions, at: Context) -> Steps:
    """List, open, close and copy sessions."""
    if a.action == "list":
        return (yield from about.sessions(at))
    if a.action == "new":
        reply = yield from request(
            "new-session", name=a.session, runtime=a.runtime, if_exists="reuse", **at.settings.folder(a.cwd)
        )
        name = a.session or reply["session"]
        text = f"session {name} is " + ("open" if reply.get("created") else "there already")
        if reply.get("cwd"):
            text += f", in {reply['cwd']}"
        if reply.get("notice"):
            text += f"; {reply['notice']}"
        return Answer(text=text, facts={"status": "ok", "session": name, "created": bool(reply.get("created"))})
    if a.session is None:
        return Answer(text=f"{a.action} needs `session`", facts={"status": "bad-arguments"}, error=True)
    if a.action == "close":
        yield from request("close", session=a.session)
        return Answer(text=f"session {a.session} is closed", facts={"status": "ok", "session": a.session})
    if a.to is None:
        return Answer(text="clone needs `to`, the name of the copy", facts={"status": "bad-arguments"}, error=True)
    return (yield from about.clone(a.session, a.to))


def info(a: Info, at: Context) -> Steps:
    """Look, and change nothing."""
    return about.ABOUT[a.what](about.Question(a.session, a.name, a.code, a.pos), at)


def env(a: Env, at: Context) -> Steps:
    """Environment and packages."""
    fields = {"session": a.session, "action": a.action, "path": a.path, "packages": a.packages or None}
    if a.action in ("show", "activate", "deactivate"):
        return opening(a.session, at.settings, lambda: about.environment(fields))
    return opening(a.session, at.settings, lambda: run("env", fields, at, a.wait))


def load_file(a: LoadFile, at: Context) -> Steps:
    """Run a file."""
    op = "reload-file" if a.reload else "load-file"
    fields = {"file": a.file, "session": a.session, "timeout_ms": milliseconds(a.timeout)}
    return opening(a.session, at.settings, lambda: run(op, fields, at, a.wait))


def stdin(a: Stdin, at: Context) -> Steps:
    """Answer `input()`."""
    text = a.text if a.text.endswith("\n") else a.text + "\n"
    reply = yield from request("stdin", session=a.session, input=text)
    if not reply.get("delivered"):
        return Answer(
            text=f"nothing reads in session {a.session} now; kept for the next that does",
            facts={"status": "buffered", "session": a.session},
        )
    running = yield from about.running(a.session)
    if running is None:
        return Answer(text="delivered", facts={"status": "ok", "session": a.session})
    return (yield from follow(at, a.session, running, a.wait))


def _output(**facts: str) -> dict[str, Any]:
    """A small open object schema: what is there besides is told as well."""
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
    Tool(
        name="eval",
        title="Run code",
        args=Eval,
        run=eval_,
        open_world=True,
        runs_code=True,
        output=_RUN,
        text="Run code in a persistent REPL session; variables and imports stay. Gives the last expression's value, "
        "then output. Sessions are separate processes; one that is not there is opened. Long code answers "
        "`running` with an eval id, and goes on.",
    ),
    Tool(
        name="read",
        title="Read an eval",
        args=Read,
        run=read,
        read_only=True,
        runs_code=True,
        output=_RUN,
        text="Wait for an eval that runs, or page (`offset`) or search (`grep`) its output.",
    ),
    Tool(
        name="interrupt",
        title="Interrupt",
        args=Interrupt,
        run=interrupt,
        destructive=False,
        idempotent=True,
        text="Stop the code that a session runs; its variables stay.",
        output=_output(interrupted="boolean"),
    ),
    Tool(
        name="reset",
        title="Reset a session",
        args=Reset,
        run=reset,
        idempotent=True,
        text="Give a session a fresh process, whatever it does; its variables are gone.",
        output=_output(epoch="integer"),
    ),
    Tool(
        name="sessions",
        title="Sessions",
        args=Sessions,
        run=sessions,
        output=_output(sessions="array"),
        text="List sessions, open, close or clone one. A clone has copies of the variables.",
    ),
    Tool(
        name="info",
        title="Look into a session",
        args=Info,
        run=info,
        read_only=True,
        text="Look without running code: the session, its variables, documentation of a name (lookup), completions, "
        "evals (jobs), stacks of what runs.",
        output=_output(),
    ),
    Tool(
        name="env",
        title="Environment and packages",
        args=Env,
        run=env,
        destructive=False,
        open_world=True,
        runs_code=True,
        output=_output(environment="string"),
        text="A session's environment: show, activate (restarts it), add or remove packages, list, install, test.",
    ),
    Tool(
        name="load_file",
        title="Run a file",
        args=LoadFile,
        run=load_file,
        open_world=True,
        runs_code=True,
        output=_RUN,
        text="Run a file in a session; its names stay.",
    ),
    Tool(
        name="stdin",
        title="Answer input()",
        args=Stdin,
        run=stdin,
        runs_code=True,
        output=_RUN,
        text="Give a line to code that waits for input.",
    ),
)

INSTRUCTIONS = """\
Persistent REPL sessions, each an isolated process. State stays between calls until an answer says `state lost`.
Use a session of your own name for work that others must not touch; `default` is shared by all who name none.
Code that takes long answers `running` with an eval id: read() waits for it, interrupt() stops it, nothing is lost.
If a call was cut off, info(what="jobs") lists what ran. Print little: long output is cut in the middle and counted,
and read() pages or searches it."""

"""AgentREPL's five tools, with its names and arguments: eval, reset, info, pkg, activate."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from replctl.client.errors import ReplError
from replctl.tools import inspection
from replctl.tools.base import FollowUps, ToolCall, ToolContext, ToolDefinition, ToolResult, bad_arguments, request
from replctl.tools.steps import answer_input, ensure_session, model_eval_fields, read_eval, run_and_render, run_code
from replwire.identifiers import DEFAULT_SESSION
from replwire.ops import PACKAGE_ACTIONS

Session = Annotated[str, Meta(description="Session name.")]
Natural = Annotated[int, Meta(ge=0)]
_NEEDS_PACKAGES = ("add", "rm")


class AgentReplEvalArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `eval`."""

    code: str = ""
    session: Session = DEFAULT_SESSION
    eval_id: Annotated[Natural | None, Meta(description="Instead of code: wait for this eval, or read on.")] = None
    offset: Annotated[Natural | None, Meta(description="With eval_id: byte of its output to read from.")] = None
    input: Annotated[str | None, Meta(description="Instead of code: a line for code that waits in input().")] = None


class AgentReplSessionArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of tools that take only a session."""

    session: Session = DEFAULT_SESSION


class AgentReplPkgArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `pkg`."""

    action: Literal["add", "rm", "status", "update", "instantiate", "resolve", "test", "develop", "free"]
    packages: Annotated[str, Meta(description="Names, or paths for develop; spaces or commas between.")] = ""
    session: Session = DEFAULT_SESSION


class AgentReplActivateArgs(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `activate`."""

    path: Annotated[str, Meta(description="Directory of a project or an environment.")]
    session: Session = DEFAULT_SESSION


def eval_(a: AgentReplEvalArgs, at: ToolContext) -> ToolCall:
    """Run code, or follow code that runs."""
    if a.input is not None:
        return answer_input(at, a.session, a.input)
    if a.eval_id is not None:
        return read_eval(at, a.session, a.eval_id, at.settings.wait, a.offset)
    if not a.code.strip():
        return bad_arguments("Error: 'code' parameter cannot be empty")
    return run_and_render("eval", model_eval_fields(at.settings, a.code, a.session), at)


def reset(a: AgentReplSessionArgs, at: ToolContext) -> ToolCall:
    """Replace the worker; the environment stays active."""
    yield from ensure_session(a.session, at.settings)
    reply = yield from request("reset", session=a.session)
    epoch = reply.get("epoch") or 1
    text = (
        f"Session reset complete.\n- Old worker (epoch {epoch - 1}) terminated\n"
        f"- New worker (epoch {epoch}) spawned\n"
        "- All variables, functions, and types cleared\n- Packages will need to be imported again\n"
        "- Directory and environment stay"
    )
    if reply.get("notice"):
        text += f", but {reply['notice']}"
    return ToolResult(text=text, structured={"status": "ok", "session": a.session, "epoch": epoch, "state": "lost"})


def info(a: AgentReplSessionArgs, at: ToolContext) -> ToolCall:
    """Describe the session and its variables."""
    yield from ensure_session(a.session, at.settings)
    return (yield from inspection.session_info(inspection.InfoQuery(a.session), at))


def pkg(a: AgentReplPkgArgs, at: ToolContext) -> ToolCall:
    """Manage packages of the session's environment."""
    names = [name for name in re.split(r"[\s,]+", a.packages) if name]
    if a.action not in PACKAGE_ACTIONS:
        there = ", ".join(PACKAGE_ACTIONS)
        return bad_arguments(f"Error: pkg action '{a.action}' has no counterpart here; there are {there}")
    if a.action in _NEEDS_PACKAGES and not names:
        return bad_arguments(f"Error: 'packages' is required for action '{a.action}'")
    return _packages(a.session, a.action, names, at)


def activate(a: AgentReplActivateArgs, at: ToolContext) -> ToolCall:
    """Switch the environment, which survives resets."""
    yield from ensure_session(a.session, at.settings)
    fields = {"session": a.session, "action": "activate", "path": a.path}
    made = ""
    try:
        switched = yield from inspection.environment(fields)
    except ReplError as error:
        if error.code != "environment-failed":
            raise
        make = {"session": a.session, "code": _make_environment(a.path)}
        result, _ = yield from run_code("eval", make, at.settings.wait)
        if not result.ok:
            raise
        made = f"Created a new environment in {a.path}\n"
        switched = yield from inspection.environment(fields)
    switched.text = f"{made}Activated project: {switched.structured.get('environment') or a.path}\n{switched.text}"
    return switched


def _make_environment(path: str) -> str:
    """Return code that makes an environment in a directory that has none."""
    return (
        f"import os, venv\npath = {path!r}\nif not os.path.isdir(path): raise NotADirectoryError(path)\n"
        "venv.create(os.path.join(path, '.venv'), with_pip=True)\ndel path"
    )


def _packages(session: str, action: str, names: list[str], at: ToolContext) -> ToolCall:
    yield from ensure_session(session, at.settings)
    return (yield from run_and_render("env", {"session": session, "action": action, "packages": names or None}, at))


_ANY = {"type": "object"}
TOOLS = (
    ToolDefinition(
        name="eval",
        title="Eval",
        args=AgentReplEvalArgs,
        run=eval_,
        open_world=True,
        runs_code=True,
        output=_ANY,
        text="Run code in the persistent REPL. State stays between calls. Long code answers with an eval_id to read.",
    ),
    ToolDefinition(
        name="reset",
        title="Reset",
        args=AgentReplSessionArgs,
        run=reset,
        idempotent=True,
        output=_ANY,
        text="Hard reset: kill the worker and start a fresh one. The active environment stays.",
    ),
    ToolDefinition(
        name="info",
        title="Info",
        args=AgentReplSessionArgs,
        run=info,
        read_only=True,
        output=_ANY,
        text="Runtime, environment and variables of the session.",
    ),
    ToolDefinition(
        name="pkg",
        title="Packages",
        args=AgentReplPkgArgs,
        run=pkg,
        destructive=False,
        open_world=True,
        runs_code=True,
        output=_ANY,
        text="Manage packages: add, rm, status, update, instantiate, resolve, test.",
    ),
    ToolDefinition(
        name="activate",
        title="Activate",
        args=AgentReplActivateArgs,
        run=activate,
        runs_code=True,
        output=_ANY,
        text="Switch the active environment. The worker restarts.",
    ),
)

INSTRUCTIONS = "A persistent REPL. Show the code to the user before `eval`: permission prompts show it escaped."
CALLS = FollowUps(read="eval", stdin="eval", answer="input")

"""AgentREPL's five tools, by its names and arguments: eval, reset, info, pkg, activate."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from replctl.tools import about
from replctl.tools.base import Answer, Context, Steps, Tool, request, wrong
from replctl.tools.running import eval_fields, opened, run
from replwire.names import DEFAULT_SESSION

Session = Annotated[str, Meta(description="Session name.")]
_PKG = {"add": "add", "rm": "remove", "status": "list", "instantiate": "install", "test": "test", "develop": "add"}
_NEEDS_PACKAGES = ("add", "rm", "develop")


class Eval(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `eval`."""

    code: str
    session: Session = DEFAULT_SESSION


class Just(msgspec.Struct, forbid_unknown_fields=True):
    """A session and nothing else."""

    session: Session = DEFAULT_SESSION


class Pkg(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `pkg`."""

    action: Literal["add", "rm", "status", "update", "instantiate", "resolve", "test", "develop", "free"]
    packages: Annotated[str, Meta(description="Names, or paths for develop; spaces or commas between.")] = ""
    session: Session = DEFAULT_SESSION


class Activate(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments of `activate`."""

    path: Annotated[str, Meta(description="Folder of a project or an environment.")]
    session: Session = DEFAULT_SESSION


def eval_(a: Eval, at: Context) -> Steps:
    """Run code."""
    if not a.code.strip():
        return wrong("Error: 'code' parameter cannot be empty")
    return run("eval", eval_fields(at.settings, a.code, a.session), at)


def reset(a: Just, at: Context) -> Steps:
    """Kill the worker; the environment stays active."""
    yield from opened(a.session, at.settings)
    reply = yield from request("reset", session=a.session)
    epoch = reply.get("epoch") or 1
    text = (
        f"Session reset complete.\n- Old worker (epoch {epoch - 1}) terminated\n"
        f"- New worker (epoch {epoch}) spawned\n"
        "- All variables, functions, and types cleared\n- Packages will need to be imported again\n"
        "- Folder and environment stay"
    )
    if reply.get("notice"):
        text += f", but {reply['notice']}"
    return Answer(text=text, facts={"status": "ok", "session": a.session, "epoch": epoch, "state": "lost"})


def info(a: Just, at: Context) -> Steps:
    """The session and its variables."""
    yield from opened(a.session, at.settings)
    return (yield from about.session_(about.Question(a.session), at))


def pkg(a: Pkg, at: Context) -> Steps:
    """Packages of the session's environment."""
    names = [name for name in re.split(r"[\s,]+", a.packages) if name]
    action = _PKG.get(a.action)
    if action is None:
        return wrong(f"Error: pkg action '{a.action}' has no counterpart here; there are {', '.join(_PKG)}")
    if a.action in _NEEDS_PACKAGES and not names:
        return wrong(f"Error: 'packages' is required for action '{a.action}'")
    return _packages(a.session, action, names, at)


def activate(a: Activate, at: Context) -> Steps:
    """Switch the environment; it survives resets."""
    yield from opened(a.session, at.settings)
    told = yield from about.environment({"session": a.session, "action": "activate", "path": a.path})
    told.text = f"Activated project: {told.facts.get('environment') or a.path}\n{told.text}"
    return told


def _packages(session: str, action: str, names: list[str], at: Context) -> Steps:
    yield from opened(session, at.settings)
    return (yield from run("env", {"session": session, "action": action, "packages": names or None}, at))


_ANY = {"type": "object"}
TOOLS = (
    Tool(
        name="eval",
        title="Eval",
        args=Eval,
        run=eval_,
        open_world=True,
        runs_code=True,
        output=_ANY,
        text="Run code in the persistent REPL. State stays between calls.",
    ),
    Tool(
        name="reset",
        title="Reset",
        args=Just,
        run=reset,
        idempotent=True,
        output=_ANY,
        text="Hard reset: kill the worker and start a fresh one. The active environment stays.",
    ),
    Tool(
        name="info",
        title="Info",
        args=Just,
        run=info,
        read_only=True,
        output=_ANY,
        text="Runtime, environment and variables of the session.",
    ),
    Tool(
        name="pkg",
        title="Packages",
        args=Pkg,
        run=pkg,
        destructive=False,
        open_world=True,
        runs_code=True,
        output=_ANY,
        text="Manage packages: add, rm, status, instantiate, test, develop.",
    ),
    Tool(
        name="activate",
        title="Activate",
        args=Activate,
        run=activate,
        runs_code=True,
        output=_ANY,
        text="Switch the active environment. The worker restarts.",
    ),
)

INSTRUCTIONS = "A persistent REPL. Show the code to the user before `eval`: permission prompts show it escaped."

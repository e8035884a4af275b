"""`replctl env`: a session's Python environment, its packages, and named environments."""

from __future__ import annotations

import os

import click

from replctl.commands.context import (
    CommandContext,
    SessionCommand,
    default_session_argument,
    session_option,
    with_common_options,
)
from replctl.commands.foreground import empty_eval_json, show_result, with_approval
from replwire.ops import PACKAGE_ACTIONS
from replwire.replies import EnvironmentEntry, Reply


@click.group()
def env() -> None:
    """Manage Python environments and packages of sessions."""


@env.command(cls=SessionCommand)
@default_session_argument
@with_common_options
def show(context: CommandContext, session: str) -> None:
    """Show a session's environment and interpreter."""
    with context.client() as client:
        reply = client.env(session)
    context.show(
        _reply_fields(reply), f"{reply.environment or 'the broker’s own Python'}: {reply.executable or 'not started'}"
    )


@env.command()
@click.argument("path")
@session_option
@with_common_options
def activate(context: CommandContext, path: str, session: str) -> None:
    """Switch a session to the environment at PATH.

    PATH is a virtual environment, an interpreter, a project directory with a .venv, or @NAME for an environment that
    the broker keeps (and creates if it is new). The session gets a fresh worker; on failure nothing changes.
    """
    with context.client() as client:
        reply = client.activate(session, path if path.startswith("@") else os.path.abspath(path))
    _show_switch(context, session, reply)


@env.command(cls=SessionCommand)
@default_session_argument
@with_common_options
def deactivate(context: CommandContext, session: str) -> None:
    """Switch a session back to the broker's own Python."""
    with context.client() as client:
        reply = client.deactivate(session)
    _show_switch(context, session, reply)


@env.command()
@with_common_options
def ls(context: CommandContext) -> None:
    """List named environments: your own, or everyone's for an administrator."""
    with context.client() as client:
        environments = client.environments()
    if context.json:
        context.screen.json({"status": ["done"], "environments": environments})
    elif not environments:
        context.screen.notice("no named environments")
    else:
        context.screen.table(
            ("ENVIRONMENT", "OWNER", "SESSIONS"),
            ((each.environment, each.owner, _sessions(each)) for each in environments),
        )


def _sessions(entry: EnvironmentEntry) -> str | None:
    others = entry.session_count - len(entry.sessions)
    return ", ".join([*entry.sessions, *([f"{others} of others"] if others else [])]) or None


@env.command()
@click.argument("environment", metavar="@NAME")
@with_common_options
def remove(context: CommandContext, environment: str) -> None:
    """Delete the named environment @NAME, which must not be in use, from the broker's disk."""
    with context.client() as client:
        reply = client.remove_environment(environment)
    context.show({"status": reply.status, "environment": reply.environment}, f"deleted {reply.environment}")


def _show_switch(context: CommandContext, session: str, reply: Reply) -> None:
    context.show(_reply_fields(reply), reply.executable or "")
    if not context.json:
        lost = "; its variables are lost" if reply.state == "lost" else ""
        context.screen.notice(f"session {session!r} now runs there (epoch {reply.epoch}){lost}")


@env.command()
@click.argument("action", type=click.Choice([*PACKAGE_ACTIONS]))
@click.argument("packages", nargs=-1)
@session_option
@click.option(
    "--from", "path", metavar="FILE", help="File that `instantiate` reads. [lock or project file in the directory]"
)
@with_common_options
def pkg(context: CommandContext, action: str, packages: tuple[str, ...], session: str, path: str | None) -> int:
    """Manage PACKAGES of a session: names, for `add` with versions if needed, as in 'pandas>=2.2'.

    An installer outside the session's sandbox fetches them, so the session needs no network, and they can be imported
    at once. It runs as an eval of the session: other clients can interrupt and read it. See docs/packages.md.
    """
    context.empty_result = empty_eval_json(session)
    with context.client() as client:
        live = None if context.json else context.screen.live
        result = with_approval(
            context, lambda approval: client.packages(action, packages, session, path, live, approval)
        )
        return show_result(context, result)


def _reply_fields(reply: Reply) -> dict[str, object]:
    return {
        "status": reply.status,
        "session": reply.session,
        "name": reply.name,
        "epoch": reply.epoch,
        "state": reply.state,
        "environment": reply.environment,
        "executable": reply.executable,
    }

"""Commands that copy into a session: clone, load; and mode."""

from __future__ import annotations

import os

import click

from replctl.commands.context import CommandContext, session_argument, session_option, with_common_options
from replctl.commands.durations import Duration
from replctl.commands.foreground import empty_eval_json, show_result


@click.command()
@session_argument
@click.argument("to")
@with_common_options
def clone(context: CommandContext, session: str, to: str) -> None:
    """Clone SESSION to a new session TO with copies of its variables; variables that cannot be copied are listed."""
    with context.client() as client:
        reply = client.clone(session, to)
    left = reply.left_behind or []
    data = {
        "status": reply.status,
        "session": reply.session,
        "name": reply.name,
        "count": reply.count,
        "bytes": reply.bytes,
        "left-behind": left,
        "notice": reply.notice,
    }
    context.show(data, reply.name or "")
    if not context.json:
        context.screen.notice(f"copied {reply.count} variables ({reply.bytes} bytes)")
        if reply.notice:
            context.screen.notice(reply.notice)
        for each in left:
            context.screen.notice(f"not copied: {each.name}: {each.why}")


@click.command()
@click.argument("file")
@session_option
@click.option("--reload", is_flag=True, help="First delete what the file defined before.")
@click.option("--timeout", type=Duration(), help="Limit of the run time.")
@click.option("--wait", type=Duration(), help="How long to wait; the eval continues and `replctl read` shows the rest.")
@with_common_options
def load(
    context: CommandContext, file: str, session: str, reload: bool, timeout: float | None, wait: float | None
) -> int:
    """Run FILE on the broker's machine, from a directory allowed by session.load-paths.

    To run a local file regardless of that setting: replctl eval -f FILE.
    """
    context.empty_result = empty_eval_json(session)
    with context.client() as client:
        live = None if context.json else context.screen.live
        if not reload:
            client.new(session, reuse=True)
        return show_result(context, client.load(os.path.abspath(file), session, reload, timeout, wait, live))


@click.command()
@session_argument
@click.argument("to", type=click.Choice(["plan", "normal"]))
@click.option("--reason", metavar="TEXT", help="Reason shown with refused requests.")
@with_common_options
def mode(context: CommandContext, session: str, to: str, reason: str | None) -> None:
    """Put SESSION into plan mode, which refuses every change, or back to normal."""
    with context.client() as client:
        reply = client.set_mode(session, to, reason)
    data = {"status": reply.status, "session": reply.session, "name": reply.name, "session-mode": reply.session_mode}
    context.show(data, f"{reply.name or reply.session}: {reply.session_mode}")

"""Commands that give a session what is elsewhere: another session's names, a file's code. And its mode."""

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
def clone(face: CommandContext, session: str, to: str) -> None:
    """Open a session TO with copies of all that SESSION has; what cannot be copied is listed, with the reason."""
    with face.client() as client:
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
    face.show(data, reply.name or "")
    if not face.json:
        face.screen.notice(f"{reply.count} names copied, {reply.bytes} bytes")
        if reply.notice:
            face.screen.notice(reply.notice)
        for each in left:
            face.screen.notice(f"left behind: {each.name}: {each.why}")


@click.command()
@click.argument("file")
@session_option
@click.option("--reload", is_flag=True, help="Forget first what the file defined before.")
@click.option("--timeout", type=Duration(), help="How long it may run.")
@click.option("--wait", type=Duration(), help="How long to wait for its end; it can be read later.")
@with_common_options
def load(face: CommandContext, file: str, session: str, reload: bool, timeout: float | None, wait: float | None) -> int:
    """Run FILE of the broker's machine in a session; the broker's config says from which folders (load-paths).

    To run a file of your own, whatever the broker allows: replctl eval -f FILE.
    """
    face.empty_result = empty_eval_json(session)
    with face.client() as client:
        live = None if face.json else face.screen.live
        if not reload:
            client.new(session, reuse=True)
        return show_result(face, client.load(os.path.abspath(file), session, reload, timeout, wait, live))


@click.command()
@session_argument
@click.argument("to", type=click.Choice(["plan", "normal"]))
@click.option("--reason", metavar="TEXT", help="Told to whoever is refused.")
@with_common_options
def mode(face: CommandContext, session: str, to: str, reason: str | None) -> None:
    """Put SESSION into plan mode, where whatever would change something is refused, or back."""
    with face.client() as client:
        reply = client.set_mode(session, to, reason)
    data = {"status": reply.status, "session": reply.session, "name": reply.name, "session-mode": reply.session_mode}
    face.show(data, f"{reply.name or reply.session}: {reply.session_mode}")

"""Commands on ownership: share, transfer."""

from __future__ import annotations

import click

from replctl.commands.context import CommandContext, session_argument, with_common_options


@click.command()
@session_argument
@click.argument("level", type=click.Choice(["read", "write", "none"]))
@click.option(
    "--with", "who", metavar="WHO", default="*", help="Identity, such as uid:1001 or a key's name. [everyone]"
)
@with_common_options
def share(context: CommandContext, session: str, level: str, who: str) -> None:
    """Let others read SESSION (read) or use it (write), or withdraw that (none)."""
    with context.client() as client:
        reply = client.share(session, level, who)
    shares = reply.shares or {}
    data = {"status": reply.status, "session": reply.session, "name": reply.name, "shares": shares}
    context.show(data, *(f"{'everyone' if who == '*' else who}: {level}" for who, level in shares.items()))
    if not shares and not context.json:
        context.screen.notice(f"session {session!r} is not shared")


@click.command("hand-over")
@session_argument
@click.option("--to", "who", metavar="WHO", required=True, help="Identity, such as uid:1001 or a key's name.")
@with_common_options
def transfer(context: CommandContext, session: str, who: str) -> None:
    """Offer SESSION to another identity, or accept one offered to you. Immediate for an administrator."""
    with context.client() as client:
        reply = client.transfer(session, who)
    data = {
        "status": reply.status,
        "session": reply.session,
        "name": reply.name,
        "owner": reply.owner,
        "offered-to": reply.offered_to,
    }
    context.show(data, reply.owner or "")
    if reply.offered_to is not None and not context.json:
        taken = f"replctl hand-over {reply.owner}/{reply.name or reply.session} --to {reply.offered_to}"
        context.screen.notice(f"offered to {reply.offered_to}, who accepts with: {taken}")

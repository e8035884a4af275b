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
def share(face: CommandContext, session: str, level: str, who: str) -> None:
    """Let others read SESSION (read) or use it (write), or withdraw that (none)."""
    with face.client() as client:
        reply = client.share(session, level, who)
    shares = reply.shares or {}
    data = {"status": reply.status, "session": reply.session, "name": reply.name, "shares": shares}
    face.show(data, *(f"{'everyone' if who == '*' else who}: {level}" for who, level in shares.items()))
    if not shares and not face.json:
        face.screen.notice(f"session {session!r} is not shared")


@click.command("hand-over")
@session_argument
@click.option("--to", "who", metavar="WHO", required=True, help="Identity, such as uid:1001 or a key's name.")
@with_common_options
def transfer(face: CommandContext, session: str, who: str) -> None:
    """Offer SESSION to another identity, or accept one offered to you. Immediate for an administrator."""
    with face.client() as client:
        reply = client.transfer(session, who)
    data = {
        "status": reply.status,
        "session": reply.session,
        "name": reply.name,
        "owner": reply.owner,
        "offered-to": reply.offered_to,
    }
    face.show(data, reply.owner or "")
    if reply.offered_to is not None and not face.json:
        taken = f"replctl hand-over {reply.owner}/{reply.name or reply.session} --to {reply.offered_to}"
        face.screen.notice(f"offered to {reply.offered_to}, who accepts with: {taken}")

"""Commands that say who else may have a session: share, hand-over."""

from __future__ import annotations

import click

from replctl.commands.context import CommandContext, session_argument, with_common_options


@click.command()
@session_argument
@click.argument("level", type=click.Choice(["read", "write", "none"]))
@click.option("--with", "who", metavar="WHO", default="*", help="An identity, as uid:1001 or a key's name. [everybody]")
@with_common_options
def share(face: CommandContext, session: str, level: str, who: str) -> None:
    """Let others see SESSION (read) or use it (write), or take that back (none)."""
    with face.client() as client:
        reply = client.share(session, level, who)
    shares = reply.shares or {}
    data = {"status": reply.status, "session": reply.session, "name": reply.name, "shares": shares}
    face.show(data, *(f"{'everybody' if who == '*' else who}: {level}" for who, level in shares.items()))
    if not shares and not face.json:
        face.screen.notice(f"session {session!r} is its owner's alone")


@click.command("hand-over")
@session_argument
@click.option("--to", "who", metavar="WHO", required=True, help="An identity, as uid:1001 or a key's name.")
@with_common_options
def transfer(face: CommandContext, session: str, who: str) -> None:
    """Offer SESSION to somebody else, or take one that was offered to you. An admin's word makes it so at once."""
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
        face.screen.notice(f"offered to {reply.offered_to}, whose it is after: {taken}")

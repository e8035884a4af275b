"""`replctl acp`: sessions for editors and agents that speak the Agent Client Protocol."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from replctl.client.address import resolve
from replctl.client.errors import ReplError
from replctl.commands.configured import configured
from replctl.commands.durations import Duration
from replwire.faults import Exit
from replwire.names import name_error
from replwire.places import state_dir

if TYPE_CHECKING:
    from replctl.acp.commands import Command


@click.command()
@click.option("--endpoint", metavar="URL", help="Address of the broker.")
@click.option("--no-start", is_flag=True, help="Do not start a broker when none answers.")
@click.option("--agent", metavar="NAME", help="Who asks; for fairness between agents. [REPLCTL_AGENT, or acp]")
@click.option(
    "--mode", type=click.Choice(["auto", "ask", "plan"]), default="auto", show_default=True, help="Of new sessions."
)
@click.option(
    "--permission-timeout",
    type=Duration(),
    default="120s",
    show_default=True,
    help="How long the client may take to allow something; then it is denied.",
)
def acp(endpoint: str | None, no_start: bool, agent: str | None, mode: str, permission_timeout: float) -> int:
    """Speak the Agent Client Protocol, version 1, on stdin and stdout, until the end of stdin.

    A prompt's text is code for a session of the broker; /help lists the commands. Ends with code 0.
    """
    name = agent or os.environ.get("REPLCTL_AGENT") or "acp"
    if (why := name_error("agent", name)) is not None:
        raise click.UsageError(why)
    try:
        address = resolve(endpoint, os.environ, os.getuid())
    except ReplError as error:
        raise click.UsageError(error.err) from None

    import asyncio

    from replctl.acp import server, stdio
    from replctl.acp.commands import Commands
    from replctl.acp.link import Link
    from replctl.acp.modes import Mode
    from replctl.acp.peer import Notes, Peer
    from replctl.acp.records import Records
    from replctl.acp.turns import Desk

    notes = Notes()
    if os.isatty(0):
        notes("messages of the Agent Client Protocol are read from here; an editor starts this. Ctrl-D ends it")
    source, sink = stdio.take_stdio()
    folder = os.path.join(state_dir(os.environ), "acp")
    slashes = Commands(_more_commands(name))

    def desk(peer: Peer) -> Desk:
        link = Link(address.endpoint, name, not no_start, notes)
        return Desk(peer, link, Records(folder), slashes, permission_timeout)

    # Not asyncio.run: at its end it waits for threads, and one may be starting a broker that nobody needs any more.
    loop = asyncio.new_event_loop()
    well = loop.run_until_complete(server.serve(source, sink, notes, desk, Mode(mode)))
    return Exit.OK if well else Exit.RAISED


def _more_commands(agent: str) -> list[Command]:
    """What extensions add; they are looked for only where the config names some."""
    named = configured()
    if not named:
        return []
    from replctl.acp.extending import slash_commands
    from replctl.extensions import load_all

    return slash_commands(load_all(named), agent)

"""`replctl acp`: sessions for editors and agents that speak the Agent Client Protocol."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from replctl.client.address import resolve
from replctl.client.errors import ReplError
from replctl.commands.params import Duration, check_labels
from replctl.settings import configured_extensions
from replwire.faults import ExitCode
from replwire.paths import state_dir

if TYPE_CHECKING:
    from replctl.acp.slash_commands import SlashCommand


@click.command()
@click.option("--endpoint", metavar="URL", help="Address of the broker.")
@click.option("--no-start", is_flag=True, help="Do not start a broker if none is running.")
@click.option("--agent", metavar="NAME", help="Agent label used for fair scheduling. [REPLCTL_AGENT, or acp]")
@click.option("--binding", metavar="NAME", help="Label of the interface, for rules of the agent's bindings.")
@click.option(
    "--mode",
    type=click.Choice(["auto", "ask", "plan"]),
    default="auto",
    show_default=True,
    help="Mode of new sessions.",
)
@click.option(
    "--permission-timeout",
    type=Duration(),
    default="120s",
    show_default=True,
    help="How long to wait for the client's permission before denying.",
)
def acp(
    endpoint: str | None, no_start: bool, agent: str | None, binding: str | None, mode: str, permission_timeout: float
) -> int:
    """Speak the Agent Client Protocol (version 1) on stdin and stdout until end of file.

    The text of a prompt is run as code in a session of the broker; /help lists the commands.
    """
    name = agent or os.environ.get("REPLCTL_AGENT") or "acp"
    check_labels(name, binding)
    try:
        address = resolve(endpoint, os.environ, os.getuid())
    except ReplError as error:
        raise click.UsageError(error.message) from None

    import asyncio

    from replctl.acp import stdio
    from replctl.acp.broker_connection import AcpBrokerConnection
    from replctl.acp.client_connection import AcpClientConnection, DiagnosticsLog
    from replctl.acp.modes import Mode
    from replctl.acp.serve import serve_acp
    from replctl.acp.slash_commands import SlashCommands
    from replctl.acp.store import AcpSessionStore
    from replctl.acp.turns import AcpServices

    notes = DiagnosticsLog()
    if os.isatty(0):
        notes("reading Agent Client Protocol messages; normally an editor starts this command. Press Ctrl-D to exit")
    source, sink = stdio.take_stdio()
    directory = os.path.join(state_dir(os.environ), "acp")
    slashes = SlashCommands(_extension_commands(name))

    def desk(peer: AcpClientConnection) -> AcpServices:
        link = AcpBrokerConnection(address.endpoint, name, not no_start, notes, binding)
        return AcpServices(peer, link, AcpSessionStore(directory), slashes, permission_timeout)

    # Not asyncio.run, which waits for threads at the end: one may be starting a broker that is not needed any more.
    loop = asyncio.new_event_loop()
    well = loop.run_until_complete(serve_acp(source, sink, notes, desk, Mode(mode)))
    return ExitCode.OK if well else ExitCode.RAISED


def _extension_commands(agent: str) -> list[SlashCommand]:
    """Return the slash commands of extensions; nothing is loaded unless the config names extensions."""
    named = configured_extensions()
    if not named:
        return []
    from replctl.acp.slash_commands import build_slash_commands
    from replctl.extensions import load_all

    return build_slash_commands(load_all(named), agent)

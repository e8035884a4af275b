"""Commands on the broker as a whole: status, shutdown, version. None of them starts a broker."""

from __future__ import annotations

import click

from replctl import __version__
from replctl.client.errors import ReplError
from replctl.commands.context import CommandContext, with_common_options
from replctl.commands.listing import format_facts

END_SECONDS = 30.0  # more than the usual close grace and the kills after it


@click.command()
@with_common_options
def status(context: CommandContext) -> None:
    """Show whether a broker is running, and its counters. The exit code is 3 if none is."""
    with context.client(start=False) as client:
        identity = client.describe().identity
        stats = client.stats()
        endpoint = client.address.endpoint
    if context.json:
        context.screen.json({"status": ["done"], "endpoint": endpoint, "identity": identity, "stats": stats})
        return
    context.screen.line(f"a broker is running at {endpoint}; you are {identity}")
    for line in format_facts(stats):
        context.screen.line(line)


@click.command()
@with_common_options
def shutdown(context: CommandContext) -> None:
    """Stop the broker and wait until it has exited. Running evals get some time to end."""
    with context.client(start=False) as client:
        reply = client.shutdown()
        ended = client.wait_for_shutdown(END_SECONDS)
        endpoint = client.address.endpoint
    context.show({"status": reply.status, "endpoint": endpoint, "ended": ended})
    if not context.json:
        context.screen.notice(f"the broker at {endpoint} {'has exited' if ended else 'is still stopping'}")


@click.command()
@with_common_options
def version(context: CommandContext) -> None:
    """Show the version of replctl, and of the broker if one is running."""
    versions = None
    try:
        with context.client(start=False) as client:
            versions = client.describe().versions
    except ReplError:
        pass  # the local version needs no broker
    context.show(
        {"status": ["done"], "replctl": __version__, "broker": versions},
        f"replctl {__version__}",
        *(f"broker: {name} {number}" for name, number in (versions or {}).items()),
    )

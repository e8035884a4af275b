"""Commands on the broker as a whole: status, shutdown, version. None of them starts a broker."""

from __future__ import annotations

import time

import click

from replctl import __version__
from replctl.client.errors import ReplError
from replctl.client.start import START_SECONDS
from replctl.client.sync import Client
from replctl.commands.context import CommandContext, with_common_options
from replctl.commands.listing import format_facts

END_SECONDS = 30.0  # more than the usual close grace and the kills after it
_RETRY_SECONDS = 0.05


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
@click.option("--keep-sessions", is_flag=True, help="Leave sessions and their evals to the next broker.")
@with_common_options
def shutdown(context: CommandContext, keep_sessions: bool) -> None:
    """Stop the broker and wait until it has exited. Running evals get some time to end, sessions are closed.

    With --keep-sessions it exits at once. Its sessions and evals go on for `broker.orphan-ttl-ms`, and the next broker
    at the endpoint has them.
    """
    with context.client(start=False) as client:
        if keep_sessions:
            _check_that_sessions_can_stay(client)
        reply = client.shutdown(keep_sessions=keep_sessions)
        ended = client.wait_for_shutdown(END_SECONDS)
        endpoint = client.address.endpoint
    context.show({"status": reply.status, "endpoint": endpoint, "ended": ended})
    if not context.json:
        context.screen.notice(f"the broker at {endpoint} {'has exited' if ended else 'is still stopping'}")


@click.command()
@with_common_options
def restart(context: CommandContext) -> None:
    """Have the broker begin again, with the version that is installed now. Sessions and their evals go on."""
    with context.client(start=False) as client:
        endpoint = client.address.endpoint
        _check_that_sessions_can_stay(client)
        client.shutdown(restart=True)
        if not client.wait_for_shutdown(END_SECONDS):
            raise ReplError("timeout", f"the broker at {endpoint} is still stopping")
    found = _wait_for_broker(context, endpoint)
    context.show(
        {"status": ["done"], "endpoint": endpoint, "broker": found},
        f"the broker at {endpoint} has begun again: version {found.get('replctl')}",
    )


def _check_that_sessions_can_stay(client: Client) -> None:
    """Raise ReplError for a broker so old that it ignores the request to keep its sessions."""
    if client.describe().instance is None:
        text = f"the broker at {client.address.endpoint} is of a version whose sessions end with it; nothing was done"
        raise ReplError("not-supported", text)


def _wait_for_broker(context: CommandContext, endpoint: str) -> dict[str, str]:
    """Return the versions of the broker that begins at an endpoint.

    Raises:
        ReplError: none does in time
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with context.client(start=False) as client:
                return client.describe().versions or {}
        except ReplError as error:
            if error.code not in ("no-broker", "broker-lost") or time.monotonic() >= deadline:
                text = (
                    f"the broker at {endpoint} did not begin again within {START_SECONDS:g} s: {error.message}; its "
                    "sessions wait for a broker there (`replctl serve`), and its log says why"
                )
                raise ReplError("no-broker", text) from None
        time.sleep(_RETRY_SECONDS)


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

"""Commands about the broker as a whole: status, shutdown, version. None of them starts one."""

from __future__ import annotations

import click

from replctl import __version__
from replctl.client.errors import ReplError
from replctl.commands.common import Face, common
from replctl.commands.listing import told

END_SECONDS = 30.0  # more than the usual close grace and the kills after it


@click.command()
@common
def status(face: Face) -> None:
    """Is there a broker, and what does it do? Exit code 3 when none answers."""
    with face.client(start=False) as client:
        identity = client.describe().identity
        stats = client.stats()
        endpoint = client.address.endpoint
    if face.json:
        face.screen.json({"status": ["done"], "endpoint": endpoint, "identity": identity, "stats": stats})
        return
    face.screen.line(f"a broker answers at {endpoint}; you are {identity}")
    for line in told(stats):
        face.screen.line(line)


@click.command()
@common
def shutdown(face: Face) -> None:
    """End the broker and wait until it is gone. Running evals get a moment, then every session is closed."""
    with face.client(start=False) as client:
        reply = client.shutdown()
        ended = client.wait_for_end(END_SECONDS)
        endpoint = client.address.endpoint
    face.show({"status": reply.status, "endpoint": endpoint, "ended": ended})
    if not face.json:
        face.screen.notice(f"the broker at {endpoint} {'has ended' if ended else 'is ending'}")


@click.command()
@common
def version(face: Face) -> None:
    """Version of replctl, and of the broker if one answers."""
    versions = None
    try:
        with face.client(start=False) as client:
            versions = client.describe().versions
    except ReplError:
        pass  # the version of what is installed here can be told without a broker
    face.show(
        {"status": ["done"], "replctl": __version__, "broker": versions},
        f"replctl {__version__}",
        *(f"broker: {name} {number}" for name, number in (versions or {}).items()),
    )

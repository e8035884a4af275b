"""`replctl top`: agents, sessions and evals on one screen."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

import click

from replctl.client.errors import ReplError
from replctl.commands.common import Face, common
from replctl.commands.configured import configured
from replctl.commands.durations import Duration
from replctl.top import snapshot
from replctl.top.parts import Parts
from replwire.faults import Exit

LEAST_SECONDS = 0.2
INSTALL = "pip install 'replctl[tui]'"


@click.command()
@click.option("--once", is_flag=True, help="Print how it is now, as plain text, and end.")
@click.option(
    "--interval",
    type=Duration(),
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="Between two looks at processor time and memory; events come at once.",
)
@click.option("--presenter", metavar="NAME", help="Another screen, of an extension.")
@common
def top(face: Face, once: bool, interval: float, presenter: str | None) -> int:
    """Sessions, agents, queue and live output on one screen. Keys: ? shows them, q quits.

    Where there is no terminal for a screen (a pipe, TERM=dumb), one snapshot is printed, as with --once.
    """
    if interval < LEAST_SECONDS:
        raise click.BadParameter(f"at least {LEAST_SECONDS} seconds", param_hint="--interval")
    if presenter is not None:
        return _present(face, presenter)
    why = None if once or face.json else _no_screen()
    if why is None and not once and not face.json and find_spec("textual") is None:
        face.screen.notice(f"the live screen needs textual: {INSTALL}")
        face.screen.notice("replctl top --once prints one snapshot without it")
        return Exit.USAGE
    with face.client() as client:
        endpoint = client.address.endpoint
        if once or face.json or why is not None:
            model = snapshot.taken(client)
            now = time.monotonic()
            if face.json:
                face.screen.json(snapshot.data(model, now))
                return Exit.OK
            for line in snapshot.text(model, now):
                face.screen.line(line)
            if why:
                face.screen.notice(f"{why}: this is one snapshot; replctl tail follows")
            return Exit.OK
    from replctl.top.run import watch  # brings textual

    return watch(face.screen, endpoint, face.agent, interval, _parts())


def _parts() -> Parts:
    """What extensions add; they are looked for only where the config names some."""
    named = configured()
    if not named:
        return Parts()
    from replctl.extensions import load_all

    return Parts(lambda on_error: load_all(named, on_error))


def _present(face: Face, name: str) -> int:
    parts = _parts()
    found = parts.presenter(name)
    if found is None:
        raise click.BadParameter(f"no extension has a presenter {name}", param_hint="--presenter")
    with face.client() as client:
        try:
            return int(found.run(client) or Exit.OK)
        except ReplError:
            raise
        except (Exception, SystemExit) as error:
            raise ReplError("not-supported", f"extension presenter {name}: {type(error).__name__}: {error}") from error


def _no_screen() -> str | None:
    """Why there can be no live screen here; "" where nobody would want one, None where there can be."""
    if not os.isatty(1):
        return ""
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "this terminal cannot show a screen (TERM=dumb)"
    if not (os.isatty(0) and os.isatty(2)):
        return "a screen needs stdin and stderr to be the terminal, too"
    return None

"""`replctl top`: agents, sessions and evals on one screen."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

import click

from replctl.client.errors import ReplError
from replctl.commands.context import CommandContext, with_common_options
from replctl.commands.params import Duration
from replctl.settings import configured_extensions
from replctl.top import snapshot
from replctl.top.screen_extensions import ScreenExtensions
from replwire.faults import ExitCode

MIN_INTERVAL_SECONDS = 0.2
INSTALL = "pip install 'replctl[tui]'"


@click.command()
@click.option("--once", is_flag=True, help="Print one snapshot as plain text and exit.")
@click.option(
    "--interval",
    type=Duration(),
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="Polling interval of processor time and memory; events are live.",
)
@click.option("--screen", metavar="NAME", help="Screen of an extension.")
@with_common_options
def top(context: CommandContext, once: bool, interval: float, screen: str | None) -> int:
    """Show sessions, agents, queue and live output on one screen. Press ? for the keys, q to quit.

    Without a terminal (a pipe, TERM=dumb) one snapshot is printed, as with --once.
    """
    if interval < MIN_INTERVAL_SECONDS:
        raise click.BadParameter(f"at least {MIN_INTERVAL_SECONDS} seconds", param_hint="--interval")
    if screen is not None:
        return _run_extension_screen(context, screen)
    why = None if once or context.json else _no_terminal_reason()
    if why is None and not once and not context.json and find_spec("textual") is None:
        context.screen.notice(f"the live screen needs textual: {INSTALL}")
        context.screen.notice("replctl top --once prints one snapshot without it")
        return ExitCode.USAGE
    with context.client() as client:
        endpoint = client.address.endpoint
        if once or context.json or why is not None:
            model = snapshot.take_snapshot(client)
            now = time.monotonic()
            if context.json:
                context.screen.json(snapshot.snapshot_data(model, now))
                return ExitCode.OK
            for line in snapshot.format_text(model, now):
                context.screen.line(line)
            if why:
                context.screen.notice(f"{why}: this is one snapshot; replctl tail follows events live")
            return ExitCode.OK
    from replctl.top.run import run_screen  # imports textual

    code, why = run_screen(endpoint, context.agent, interval, _load_extensions())
    if why is not None:
        context.screen.notice(why)
    return code


def _load_extensions() -> ScreenExtensions:
    """Return the screen extensions; nothing is loaded unless the config names extensions."""
    named = configured_extensions()
    if not named:
        return ScreenExtensions()
    from replctl.extensions import load_all

    return ScreenExtensions(lambda on_error: load_all(named, on_error))


def _run_extension_screen(context: CommandContext, name: str) -> int:
    parts = _load_extensions()
    found = parts.find_screen(name)
    if found is None:
        raise click.BadParameter(f"no extension has a screen {name}", param_hint="--screen")
    with context.client() as client:
        try:
            return int(found.run(client) or ExitCode.OK)
        except ReplError:
            raise
        except (Exception, SystemExit) as error:
            raise ReplError("not-supported", f"extension screen {name}: {type(error).__name__}: {error}") from error


def _no_terminal_reason() -> str | None:
    """Return why there is no live screen: "" if none was expected, None if there is one."""
    if not os.isatty(1):
        return ""
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return "this terminal cannot show a screen (TERM=dumb)"
    if not (os.isatty(0) and os.isatty(2)):
        return "the live screen needs stdin and stderr at the terminal as well"
    return None

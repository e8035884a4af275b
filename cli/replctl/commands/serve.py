"""`replctl serve`: run a broker. The only module of this package that imports the broker."""

from __future__ import annotations

import json
import os
import sys
from typing import Final, NoReturn

import click

from replctl.client.address import absolute_endpoint
from replctl.client.errors import ReplError
from replctl.commands.output import CommandOutput
from replctl.commands.params import Duration
from replctl.settings import parse_set, read_settings
from replwire.config import ConfigError, LoadedConfig
from replwire.faults import ExitCode
from replwire.paths import default_endpoint, state_dir

_RESUMED: Final = "--resumed"  # ready messages were sent, and the process is where it should be


@click.command()
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    metavar="URL",
    help="Address to listen on; repeatable. [REPLCTL_ENDPOINT, config, the user's socket]",
)
@click.option(
    "--tcp",
    multiple=True,
    metavar="HOST:PORT",
    help="Also serve JSON lines over TCP; repeatable. 127.0.0.1:5555 is conventional.",
)
@click.option("--unix", multiple=True, metavar="PATH", help="Also serve JSON lines on a Unix socket; repeatable.")
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="Config file instead of the user's own.")
@click.option(
    "--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting of file and environment."
)
@click.option("--idle-exit", type=Duration(), help="Exit after this long without sessions; 0: never.")
@click.option("--end-with-stdin", is_flag=True, help="End, with all sessions, when standard input is closed.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one JSON object on one line.")
@click.option("--background", is_flag=True, hidden=True)
@click.option("--resumed", is_flag=True, hidden=True)
def serve(
    endpoints: tuple[str, ...],
    tcp: tuple[str, ...],
    unix: tuple[str, ...],
    path: str | None,
    pairs: tuple[str, ...],
    idle_exit: float | None,
    end_with_stdin: bool,
    as_json: bool,
    background: bool,
    resumed: bool,
) -> int:
    """Run a broker in the foreground until SIGINT, SIGTERM or `replctl shutdown`."""
    flags = parse_set(pairs)
    if idle_exit is not None:
        flags["broker.idle-exit-ms"] = str(round(idle_exit * 1000))
    flags |= {f"broker.{key}": _toml_value(given) for key, given in (("tcp", tcp), ("unix", unix)) if given}
    loaded = read_settings(path, flags)
    named = endpoints or (loaded.config.broker.endpoint or default_endpoint(os.environ, os.getuid()),)
    try:
        addresses = [absolute_endpoint(each, is_listener=True) for each in named]
    except ReplError as error:
        raise click.UsageError(error.message) from None
    if background and not resumed:
        _detach()

    try:
        from replbroker.app import StartError, run
    except OSError as error:  # an import of the broker looks for a directory for temporary files
        return _report_start_error(error)

    listener = _take_ready_pipe() if (background or as_json) and not resumed else None

    ready: dict[str, object] = {}

    def announce(fields: dict[str, object]) -> None:
        ready.update(fields)
        if listener is not None:
            CommandOutput(listener).json(ready)
            os.close(listener)  # signals the end of the message to the caller
        else:
            _show_ready(ready)

    def read_again() -> LoadedConfig:
        try:
            return read_settings(path, flags)
        except click.UsageError as error:
            raise ConfigError(error.format_message(), "") from None

    try:
        is_restarting = run(
            loaded,
            addresses,
            state_dir=state_dir(os.environ),
            background=background or idle_exit is not None,
            ends_with_stdin=end_with_stdin,
            announce=announce,
            reread=read_again,
        )
        if is_restarting:
            _begin_again()
        return ExitCode.OK
    except StartError as error:
        CommandOutput().notice(str(error))
    except OSError as error:
        if ready:
            raise
        return _report_start_error(error)
    return ExitCode.NO_BROKER


def _begin_again() -> NoReturn:
    """Run this command again in the same process: its caller, a service manager or a terminal, notices nothing.

    Raises:
        OSError: The interpreter cannot be run any more.
    """
    arguments = [word for word in sys.orig_argv[1:] if word != _RESUMED]
    os.execv(sys.executable, [sys.executable, *arguments, _RESUMED])


def _report_start_error(error: OSError) -> int:
    where = f"{error.filename}: " if error.filename else ""
    CommandOutput().notice(f"cannot start a broker: {where}{error.strerror}")
    return ExitCode.NO_BROKER


def _toml_value(given: tuple[str, ...]) -> str:
    """Return a list as TOML, which for plain strings is the same as JSON."""
    return given[0] if len(given) == 1 else json.dumps(given)


def _take_ready_pipe() -> int:
    """Return stdout as a private descriptor for the ready message; later prints go to stderr, the log."""
    listener = os.dup(1)
    os.dup2(2, 1)
    return listener


def _detach() -> None:
    """Detach from the caller by forking, so the caller does not have to reap the broker."""
    if os.fork():
        os._exit(0)


def _show_ready(ready: dict[str, object]) -> None:
    screen = CommandOutput()
    listening = ready.get("listening")
    for url in listening if isinstance(listening, list) else ():
        screen.notice(f"listening on {url} (pid {ready.get('pid')})")
    for key, text in (("lost", "sessions lost with the previous broker: "), ("warnings", "")):
        entries = ready.get(key)
        if isinstance(entries, list) and entries:
            for line in [", ".join(map(str, entries))] if key == "lost" else entries:
                screen.notice(f"{text}{line}")

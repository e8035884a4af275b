"""`replctl install`: add `replctl mcp` to the configuration of an MCP client."""

from __future__ import annotations

import difflib
import os
import sys
import time

import click

from replctl.atomic_file import write_atomically
from replctl.commands.output import CommandOutput
from replctl.mcp.clients import CLIENTS
from replctl.mcp.config_edit import CannotEdit
from replctl.tools.catalog import SETS
from replwire.faults import ExitCode
from replwire.identifiers import name_error


@click.command()
@click.option("--client", type=click.Choice(list(CLIENTS)), required=True, help="Client to configure.")
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    help="For you everywhere, or for everyone in this directory. [user]",
)
@click.option("--print", "show", is_flag=True, help="Print the entry without writing it.")
@click.option("--name", default="replctl", metavar="NAME", help="Name of the server in the client. [replctl]")
@click.option("--agent", metavar="NAME", help="Pass --agent NAME to the server.")
@click.option("--tools", "set_name", type=click.Choice(list(SETS)), help="Pass --tools to the server.")
@click.option("--endpoint", metavar="URL", help="Pass --endpoint URL to the server.")
def install(
    client: str, scope: str, show: bool, name: str, agent: str | None, set_name: str | None, endpoint: str | None
) -> int:
    """Add the server to an MCP client's configuration. Shows a diff and keeps a backup of the file.

    Nothing changes if the entry already exists.
    """
    for label, text in (("server", name), ("agent", agent)):
        if text is not None and (why := name_error(label, text)) is not None:
            raise click.UsageError(why)
    options = (("--agent", agent), ("--tools", set_name), ("--endpoint", endpoint))
    command = [*_program(scope), "mcp", *(word for flag, value in options if value for word in (flag, value))]
    place = CLIENTS[client]
    path = place.path(scope, os.environ, os.getcwd())
    if path is None:
        raise click.UsageError(f"{client} has no project configuration")
    path = os.path.realpath(path)
    entry, screen = place.entry(command), CommandOutput()
    if show:
        screen.block(place.edit("", name, entry).removesuffix("\n"))
        return ExitCode.OK
    before = _read(path)
    try:
        after = place.edit(before, name, entry)
    except CannotEdit as error:
        snippet = place.edit("", name, entry)
        raise click.ClickException(f"{path} was not changed: {error}. Add this by hand:\n{snippet}") from None
    if after == before:
        screen.notice(f"already in {path}")
        return ExitCode.OK
    for line in difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm=""):
        screen.block(line)
    kept = _write(path, before, after)
    screen.notice(f"wrote {path}" + (f"; backup: {kept}" if kept else ""))
    return ExitCode.OK


def _program(scope: str) -> list[str]:
    """Return the command that starts replctl: an absolute path for a user, since clients may lack PATH; else a name."""
    if scope == "project":
        return ["replctl"]
    beside = os.path.join(os.path.dirname(sys.executable), "replctl")
    return [beside] if os.access(beside, os.X_OK) else [sys.executable, "-P", "-m", "replctl"]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read {path}: {error}") from None


def _write(path: str, before: str, after: str) -> str | None:
    """Replace the file atomically, keeping its mode. Returns the path of the backup, if the file existed."""
    kept = f"{path}.{time.strftime('%Y%m%d-%H%M%S')}.bak" if os.path.exists(path) else None
    try:
        mode = os.stat(path).st_mode & 0o777 if kept else None
        if kept is not None:
            write_atomically(kept, before, mode)
        write_atomically(path, after, mode)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
    return kept

"""Parameter types of commands, and defaults for a new session."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from replctl.client.address import current_directory
from replctl.client.errors import ReplError
from replctl.durations import parse_duration
from replwire.identifiers import name_error

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    _FloatParam = click.ParamType[float]
else:
    _FloatParam = click.ParamType  # generic for the type checker; older clicks cannot be subscripted


class Duration(_FloatParam):
    """A duration option, in seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds; raises a usage error for anything else."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SessionName(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click alone
    """A session parameter, completed with the names of existing sessions. Never starts a broker."""

    name = "session"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Return sessions with this prefix."""
        from click.shell_completion import CompletionItem  # needed for completion only

        from replctl.client.sync import Client

        try:
            with Client(ctx.params.get("endpoint"), start=False) as client:
                entries = client.sessions()
        except ReplError:
            return []
        names = [entry.ref for entry in entries]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def directory_for_new(flag: str | None, endpoint: str) -> str | None:
    """Return the directory for a new session: the flag, else the caller's; None for a remote broker."""
    return current_directory(endpoint) if flag is None else os.path.abspath(flag)


def check_labels(agent: str, binding: str | None) -> None:
    """Raise UsageError if an agent's or a binding's label is not valid."""
    for what, name in (("agent", agent), ("binding", binding)):
        if name is not None and (why := name_error(what, name)) is not None:
            raise click.UsageError(why)


def runtime_for_new(flag: str | None, directory: str | None) -> tuple[str | None, str | None]:
    """Return the runtime for a new session, and the environment found in its directory if that determined it."""
    if flag is not None:
        return (os.path.abspath(flag) if "/" in flag else flag), None
    found = None if directory is None else os.path.join(directory, ".venv")
    if found is not None and os.path.isfile(os.path.join(found, "bin/python")):
        return found, found
    return None, None


def parse_env(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `K=V`; raises a usage error for anything else."""
    env = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"--env needs K=V, not {pair!r}")
        env[name] = value
    return env


def read_source(file: str) -> str:
    """Return the code in a file, `-` for stdin; raises a usage error if it cannot be read."""
    try:
        with open(0 if file == "-" else file, "rb", closefd=file != "-") as source:
            return source.read().decode()
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{'stdin' if file == '-' else file} is not UTF-8: {error}") from None


def suggest_name(name: str, known: list[str]) -> str | None:
    """Return the known name that is most like this one, or None if none is."""
    from difflib import get_close_matches  # after an error only

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.75)), None)

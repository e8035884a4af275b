"""`replctl extensions`: contributions of extensions, and their commands."""

from __future__ import annotations

import click

from replctl import extensions as ext
from replctl.client.errors import ReplError
from replctl.commands.context import CommandContext, session_option, with_common_options
from replctl.settings import configured_extensions


@click.command()
@with_common_options
def extensions(context: CommandContext) -> None:
    """List what the configured extensions contribute, here and in the running broker."""
    named = configured_extensions()
    here = ext.load_all(named).listing()
    rows = [{**each, "loaded": "here"} for each in here] + _broker_extensions(context)
    if context.json:
        context.screen.json({"status": ["done"], "extensions": rows})
    elif not rows:
        context.screen.notice("no extensions" if not named else "the extensions contribute nothing")
    else:
        columns = ("KIND", "NAME", "OWNER", "LOADED", "SUMMARY")
        context.screen.table(columns, ([each[name.lower()] for name in columns] for each in rows))


def _broker_extensions(context: CommandContext) -> list[dict[str, str]]:
    """Return the broker's list of contributions; empty without a broker or without permission."""
    try:
        with context.client(start=False) as client:
            found = (client.request("introspect", name="extensions").snapshots or {})["extensions"]
    except ReplError:
        return []
    return [{**each, "loaded": "broker"} for each in found]


def find_command(name: str) -> click.Command | None:
    """Return the extension command with this name, or None."""
    registry = ext.load_all(configured_extensions())
    found = ext.commands_by_name(registry).get(name)
    if found is None:
        return None

    @click.command(name, help=found.summary, context_settings={"ignore_unknown_options": True})
    @session_option
    @click.argument("arguments", nargs=-1, metavar=found.hint or "[ARGUMENTS]...")
    @with_common_options
    def command(context: CommandContext, session: str, arguments: tuple[str, ...]) -> None:
        with context.client() as client, ext.redirect_stdout_to_stderr():
            text = ext.run_command(registry, name, client, session, ext.join_arguments(arguments))
        if context.json:
            context.screen.json({"status": ["done"], "text": text})
        else:
            context.screen.block(text)

    return command


def list_commands() -> list[tuple[str, str]]:
    """Return name and summary of each extension command."""
    some = ext.commands_by_name(ext.load_all(configured_extensions())).values()
    return [(each.name, each.summary) for each in some]

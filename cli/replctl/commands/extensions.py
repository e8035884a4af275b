"""`replctl extensions`: what is loaded, and the commands that extensions bring."""

from __future__ import annotations

import click

from replctl import extensions as ext
from replctl.client.errors import ReplError
from replctl.commands.common import Face, common, session_option
from replctl.commands.configured import configured


@click.command()
@common
def extensions(face: Face) -> None:
    """What the extensions of the config contribute, here and to the broker that runs."""
    named = configured()
    here = ext.load_all(named).listing()
    rows = [{**each, "loaded": "here"} for each in here] + _in_broker(face)
    if face.json:
        face.screen.json({"status": ["done"], "extensions": rows})
    elif not rows:
        face.screen.notice("no extensions" if not named else "the extensions contribute nothing")
    else:
        columns = ("KIND", "NAME", "OWNER", "LOADED", "SUMMARY")
        face.screen.table(columns, ([each[name.lower()] for name in columns] for each in rows))


def _in_broker(face: Face) -> list[dict[str, str]]:
    """What the broker says that it has; nothing when there is none, or it does not tell us."""
    try:
        with face.client(start=False) as client:
            found = (client.request("introspect", name="extensions").snapshots or {})["extensions"]
    except ReplError:
        return []
    return [{**each, "loaded": "broker"} for each in found]


def as_command(name: str) -> click.Command | None:
    """The command of this name that an extension brings, or None."""
    registry = ext.load_all(configured())
    found = ext.commands(registry).get(name)
    if found is None:
        return None

    @click.command(name, help=found.summary, context_settings={"ignore_unknown_options": True})
    @session_option
    @click.argument("arguments", nargs=-1, metavar=found.hint or "[ARGUMENTS]...")
    @common
    def command(face: Face, session: str, arguments: tuple[str, ...]) -> None:
        with face.client() as client, ext.stdout_is_ours():
            text = ext.run(registry, name, client, session, ext.words(arguments))
        if face.json:
            face.screen.json({"status": ["done"], "text": text})
        else:
            face.screen.block(text)

    return command


def entries() -> list[tuple[str, str]]:
    """Name and summary of each command that extensions bring."""
    some = ext.commands(ext.load_all(configured())).values()
    return [(each.name, each.summary) for each in some]

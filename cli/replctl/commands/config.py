"""`replctl config`: settings with their sources, the config file, and reload."""

from __future__ import annotations

import click
import msgspec

from replctl.commands import config_file
from replctl.commands.context import CommandContext, with_common_options
from replctl.commands.output import CommandOutput
from replctl.settings import parse_set, salvage_settings
from replwire.config import list_settings
from replwire.faults import ExitCode


@click.group()
def config() -> None:
    """Show and change settings."""


for _each in (config_file.path, config_file.get, config_file.set_, config_file.unset, config_file.edit):
    config.add_command(_each)


@config.command()
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="Config file instead of the user's own.")
@click.option("--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a setting, as with `serve`.")
@click.option("--json", is_flag=True, help="Print one JSON object on one line.")
def show(path: str | None, pairs: tuple[str, ...], json: bool) -> int:
    """Show every setting with its value and source: default, file, environment or flag.

    Invalid settings are listed and the others are shown; the exit code is then 2.
    """
    loaded, problems = salvage_settings(path, parse_set(pairs))
    values = msgspec.to_builtins(loaded.config)
    rows = [
        (f"{section}.{key}", values[section][key], loaded.sources.get(f"{section}.{key}", "default"))
        for section, key, _ in list_settings()
    ]
    rows += [(name, values[name], loaded.sources[name]) for name in ("agents", "identities") if values[name]]
    screen = CommandOutput()
    if json:
        settings = {dotted: {"value": value, "source": source} for dotted, value, source in rows}
        wrong = {"err": "; ".join(problems), "code": "invalid-config", "problems": problems} if problems else {}
        screen.json(
            {"status": ["done", "error", "invalid-config"] if problems else ["done"], **wrong, "settings": settings}
        )
        return _exit(problems)
    text = [(dotted, source, msgspec.json.encode(value).decode()) for dotted, value, source in rows]
    screen.table(("SETTING", "FROM", "VALUE"), text)  # the value comes last: a list may be hundreds of characters long
    for problem in problems:
        screen.notice(f"invalid and left out above: {problem}")
    return _exit(problems)


def _exit(problems: list[str]) -> int:
    return ExitCode.USAGE if problems else ExitCode.OK


@config.command()
@with_common_options
def reload(context: CommandContext) -> None:
    """Make the broker reload its config file and list settings that need a restart."""
    with context.client(start=False) as client:
        reply = client.reload_config()
    reloaded, restart = reply.reloaded or [], reply.needs_restart or []
    context.show({"status": reply.status, "reloaded": reloaded, "needs-restart": restart})
    if not context.json:
        context.screen.line(f"reloaded: {', '.join(reloaded) or 'nothing'}")
        if restart:
            context.screen.line(f"restart needed for: {', '.join(restart)}")

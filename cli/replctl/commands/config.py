"""`replctl config`: every setting, its value, where it came from, and a broker that runs told to read them again."""

from __future__ import annotations

import click
import msgspec

from replctl.commands.context import CommandContext, with_common_options
from replctl.commands.output import CommandOutput
from replctl.settings import parse_set, salvage_settings
from replwire.config import list_settings
from replwire.faults import ExitCode


@click.group()
def config() -> None:
    """Settings, and where each came from."""


@config.command()
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="Instead of the user's own file.")
@click.option("--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="As `serve` would get it.")
@click.option("--json", is_flag=True, help="One JSON object on one line.")
def show(path: str | None, pairs: tuple[str, ...], json: bool) -> int:
    """Every setting with its value and its source: default, file, environment or flag.

    What cannot be used is named, the others are shown, and the exit code is 2.
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
        wrong = {"err": "; ".join(problems), "word": "invalid-config", "problems": problems} if problems else {}
        screen.json(
            {"status": ["done", "error", "invalid-config"] if problems else ["done"], **wrong, "settings": settings}
        )
        return _exit(problems)
    text = [(dotted, source, msgspec.json.encode(value).decode()) for dotted, value, source in rows]
    screen.table(("SETTING", "FROM", "VALUE"), text)  # a list may be hundreds of characters long: it pads nothing
    for problem in problems:
        screen.notice(f"cannot be used, and left out above: {problem}")
    return _exit(problems)


def _exit(problems: list[str]) -> int:
    return ExitCode.USAGE if problems else ExitCode.OK


@config.command()
@with_common_options
def reload(face: CommandContext) -> None:
    """Have the broker read its config file again: what can change while it runs does, the rest is named."""
    with face.client(start=False) as client:
        reply = client.reload_config()
    reloaded, restart = reply.reloaded or [], reply.needs_restart or []
    face.show({"status": reply.status, "reloaded": reloaded, "needs-restart": restart})
    if not face.json:
        face.screen.line(f"reloaded: {', '.join(reloaded) or 'nothing'}")
        if restart:
            face.screen.line(f"needs a restart: {', '.join(restart)}")

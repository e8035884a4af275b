"""`replctl config show`: every setting, its value, and where it came from."""

from __future__ import annotations

import click
import msgspec

from replctl.commands.screen import Screen
from replctl.commands.settings import parse_set, read_settings
from replwire.config import keys


@click.group()
def config() -> None:
    """Settings, and where each came from."""


@config.command()
@click.option("--config", "path", type=click.Path(), metavar="FILE", help="Instead of the user's own file.")
@click.option("--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="As `serve` would get it.")
@click.option("--json", is_flag=True, help="One JSON object on one line.")
def show(path: str | None, pairs: tuple[str, ...], json: bool) -> None:
    """Every setting with its value and its source: default, file, environment or flag."""
    loaded = read_settings(path, parse_set(pairs))
    values = msgspec.to_builtins(loaded.config)
    rows = [
        (f"{section}.{key}", values[section][key], loaded.sources.get(f"{section}.{key}", "default"))
        for section, key, _ in keys()
    ]
    rows += [(name, values[name], loaded.sources[name]) for name in ("agents", "identities") if values[name]]
    screen = Screen()
    if json:
        settings = {dotted: {"value": value, "source": source} for dotted, value, source in rows}
        screen.json({"status": ["done"], "settings": settings})
        return
    text = [(dotted, msgspec.json.encode(value).decode(), source) for dotted, value, source in rows]
    screen.table(("SETTING", "VALUE", "FROM"), text)

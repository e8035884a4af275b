"""`replctl tools`: the schemas of a tool set, for people who write their own agent loop."""

from __future__ import annotations

import click
import msgspec

from replctl.commands.mcp import more_tools
from replctl.tools.formats import FORMATS, schemas
from replctl.tools.sets import SETS, ToolSet
from replwire.faults import Exit


@click.command()
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="mcp", help="Whose API. [mcp]")
@click.option("--set", "set_name", type=click.Choice(list(SETS)), default="default", help="Which tools. [default]")
def tools(form: str, set_name: str) -> int:
    """Print a tool set's schemas as JSON. `replctl.tools` executes the calls."""
    text = msgspec.json.format(msgspec.json.encode(schemas(ToolSet(set_name, more=more_tools()), form)), indent=2)
    click.echo(text.decode())
    return Exit.OK

"""`replctl tools`: schemas of a tool set, for custom agent loops."""

from __future__ import annotations

import click
import msgspec

from replctl.commands.mcp import extension_tools
from replctl.tools.catalog import SETS, ToolSet
from replctl.tools.formats import FORMATS, schemas
from replwire.faults import ExitCode


@click.command()
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="mcp", help="Schema format. [mcp]")
@click.option("--set", "set_name", type=click.Choice(list(SETS)), default="default", help="Tool set. [default]")
def tools(form: str, set_name: str) -> int:
    """Print a tool set's schemas as JSON. The Python module `replctl.tools` executes the calls."""
    text = msgspec.json.format(msgspec.json.encode(schemas(ToolSet(set_name, more=extension_tools()), form)), indent=2)
    click.echo(text.decode())
    return ExitCode.OK

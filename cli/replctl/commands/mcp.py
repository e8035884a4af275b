"""`replctl mcp` and `replctl tools`: sessions as an MCP server, and schemas of its tool sets."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import MutableMapping
from functools import partial

import click
import msgspec

from replctl.client.address import resolve
from replctl.client.errors import ReplError
from replctl.commands.params import Duration, check_labels, directory_for_new
from replctl.extensions import configured_tools
from replctl.mcp.early import NO_EXCHANGE, EarlyExchange, EarlyServer, read_line, write_line
from replctl.tools.base import ToolSettings
from replctl.tools.catalog import FORMATS, SETS, ToolSet, schemas
from replwire.faults import ExitCode

DEFAULT_HTTP = "127.0.0.1:8931"


@click.command()
@click.option("--tools", "set_name", type=click.Choice(list(SETS)), default="default", help="Tool set. [default]")
@click.option("--agent", metavar="NAME", help="Agent label used for fair scheduling. [REPLCTL_AGENT, or mcp-PID]")
@click.option("--binding", metavar="NAME", help="Label of the interface, for rules of the agent's bindings.")
@click.option("--endpoint", metavar="URL", help="Address of the broker.")
@click.option("--no-start", is_flag=True, help="Do not start a broker if none is running.")
@click.option(
    "--http",
    is_flag=False,
    flag_value=DEFAULT_HTTP,
    metavar="[HOST:PORT]",
    help=f"Serve HTTP on loopback instead of stdin and stdout. [{DEFAULT_HTTP}]",
)
@click.option(
    "--wait",
    type=Duration(),
    metavar="DURATION",
    help="How long a call waits for code before returning `running`. [45s]",
)
@click.option(
    "--budget", type=click.IntRange(500, 1_000_000), metavar="N", help="Size limit of one result in characters. [4000]"
)
@click.option(
    "--structured", is_flag=True, help="Return structured content from tools that run code as well, for programs."
)
def mcp(
    set_name: str,
    agent: str | None,
    binding: str | None,
    endpoint: str | None,
    no_start: bool,
    http: str | None,
    wait: float | None,
    budget: int | None,
    structured: bool,
) -> int:
    """Serve MCP: sessions as tools for an agent. Ends at the end of stdin."""
    find_runtime_dir(os.environ, os.getuid())
    agent = agent or os.environ.get("REPLCTL_AGENT") or f"mcp-{os.getpid()}"
    check_labels(agent, binding)
    try:
        address = resolve(endpoint, os.environ, os.getuid())
    except ReplError as error:
        raise click.UsageError(error.message) from None

    usual = ToolSettings()
    settings = ToolSettings(
        wait=usual.wait if wait is None else wait,
        budget=budget or usual.budget,
        structured=structured,
        cwd=directory_for_new(None, address.endpoint),
    )
    toolset = ToolSet(set_name, settings, configured_tools())
    before = _answer_early(toolset) if http is None else NO_EXCHANGE
    if before.is_over:
        return ExitCode.OK
    gc.disable()  # while the SDK creates its classes: collections would take a tenth of the startup

    import anyio

    from replctl.mcp.server import build_server

    named = {} if binding is None else {"binding": binding}
    server = build_server(toolset, endpoint, agent, None if http else ".", start=not no_start, **named)
    if http is not None:
        from replctl.mcp.http import serve_http

        _resume_gc()
        try:
            return serve_http(server, http)
        except ReplError as error:
            raise click.ClickException(error.message) from None
    from replctl.mcp.stdio import serve

    _resume_gc()
    anyio.run(serve, server, before)
    return ExitCode.OK


def _answer_early(toolset: ToolSet) -> EarlyExchange:
    """Answer the first requests of a client over stdio before the SDK is there."""
    if os.isatty(0):
        print(
            "replctl: MCP server on this terminal; press Ctrl-D to exit. Clients normally start it: "
            "replctl install --client NAME",
            file=sys.stderr,
        )
    try:
        if (sys.stdin.fileno(), sys.stdout.fileno()) != (0, 1):
            return NO_EXCHANGE
    except (AttributeError, OSError, ValueError):  # called by a program with streams of its own
        return NO_EXCHANGE
    server = EarlyServer(toolset, partial(write_line, 1))
    try:
        return server.serve(partial(read_line, 0))
    except BrokenPipeError:  # the client is gone
        return EarlyExchange([], None, is_over=True)


def _resume_gc() -> None:
    """Enable garbage collection, and exempt all objects that exist now."""
    gc.freeze()
    gc.enable()


def find_runtime_dir(environ: MutableMapping[str, str], uid: int, users: str = "/run/user") -> None:
    """Set XDG_RUNTIME_DIR if the client did not pass it on; without it the user's broker would not be found."""
    usual = os.path.join(users, str(uid))
    if "XDG_RUNTIME_DIR" not in environ and os.path.isdir(usual) and os.stat(usual).st_uid == uid:
        environ["XDG_RUNTIME_DIR"] = usual


@click.command()
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="mcp", help="Schema format. [mcp]")
@click.option("--set", "set_name", type=click.Choice(list(SETS)), default="default", help="Tool set. [default]")
def tools(form: str, set_name: str) -> int:
    """Print a tool set's schemas as JSON. The Python module `replctl.tools` executes the calls."""
    text = msgspec.json.format(msgspec.json.encode(schemas(ToolSet(set_name, more=configured_tools()), form)), indent=2)
    click.echo(text.decode())
    return ExitCode.OK

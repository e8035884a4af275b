"""Contributions of extensions to clients: commands, tools and parts of `replctl top`. Loaded on first use."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from replctl.client.errors import ReplError
from replctl.settings import configured_extensions
from replctl.tools.base import ToolCall, ToolContext, ToolResult
from replctl.tools.base import ToolDefinition as BaseTool
from replwire.ext.contracts import ExtensionCommand, ExtensionTool
from replwire.ext.registry import ExtensionRegistry, OnError, Registration
from replwire.extensions import Extension
from replwire.terminal import escape_lines


def load_all(extensions: Sequence[Extension], on_error: OnError | None = None) -> ExtensionRegistry:
    """Load the extensions and return their contributions.

    An extension that cannot be loaded is reported on stderr and skipped: unlike a broker, a client protects nothing.
    Later errors go to `on_error`, or to stderr too.
    """
    registry = ExtensionRegistry(on_error or _report_failure)
    for extension in extensions:
        from replwire.ext.loading import ExtensionLoadError, load  # most users have no extensions and need no pluggy

        try:
            with redirect_stdout_to_stderr():
                load([extension], registry)
        except ExtensionLoadError as error:
            _warn(str(error))
    return registry


@contextmanager
def redirect_stdout_to_stderr() -> Iterator[None]:
    """Redirect prints of extensions to stderr inside the block: stdout is for results, often read by a program."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _warn(text: str) -> None:
    print(f"replctl: {escape_lines(text, '  ')}", file=sys.stderr)


def _report_failure(record: Registration, error: BaseException) -> None:
    _warn(f"extension {record.label}: {type(error).__name__}: {error}")


def commands_by_name(registry: ExtensionRegistry) -> dict[str, ExtensionCommand]:
    """Return commands by name."""
    return {
        record.contribution.name: record.contribution
        for record in registry.by_kind(ExtensionCommand)
        if isinstance(record.contribution, ExtensionCommand)
    }


def run_command(registry: ExtensionRegistry, name: str, client: Any, session: str, arguments: str) -> str:
    """Run a command. Raises ReplError like the broker, and `not-supported` if the command's code raises."""
    found = registry.find(ExtensionCommand, name)
    assert found is not None, "asked for by the table of commands"
    try:
        return str(found[1].run(client, session, arguments))
    except ReplError:
        raise
    except (Exception, SystemExit) as error:
        raise ReplError("not-supported", f"extension {found[0].label}: {type(error).__name__}: {error}") from error


def configured_tools() -> list[BaseTool]:
    """Return the tools of the extensions that the config names; nothing is loaded unless it names any."""
    named = configured_extensions()
    return tools(load_all(named)) if named else []


def tools(registry: ExtensionRegistry) -> list[BaseTool]:
    """Return the tools of extensions; a tool that raises returns a result that says so."""
    return [
        _tool(record, record.contribution)
        for record in registry.by_kind(ExtensionTool)
        if isinstance(record.contribution, ExtensionTool)
    ]


def _tool(record: Registration, tool: ExtensionTool) -> BaseTool:
    def steps(arguments: Any, context: ToolContext) -> ToolCall:
        try:
            answer = yield from tool.run(arguments, context)
            if not isinstance(answer, ToolResult):
                raise TypeError(f"returned {type(answer).__name__} instead of ToolResult")
        except ReplError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's code, whatever it raises
            _report_failure(record, error)
            text = f"the tool failed: {type(error).__name__}: {error}"
            return ToolResult(text=text, structured={"status": "extension-error"}, error=True)
        return answer

    return BaseTool(
        name=tool.name,
        title=tool.title,
        text=tool.text,
        args=tool.args,
        run=steps,
        read_only=tool.read_only,
        destructive=tool.destructive,
        idempotent=tool.idempotent,
        open_world=tool.open_world,
        output={"type": "object"},
    )


def join_arguments(arguments: Sequence[str]) -> str:
    """Join command-line arguments into a text that `shlex.split` splits again."""
    return shlex.join(arguments)

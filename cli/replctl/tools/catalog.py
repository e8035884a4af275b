"""The tool sets by name, and their schemas in the formats of different APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from replctl.client.errors import ReplError
from replctl.tools import default
from replctl.tools.base import ToolCall, ToolContext, ToolDefinition, ToolResult, ToolSettings
from replctl.tools.compat import agentrepl, nexo, reply
from replctl.tools.render import error_result
from replctl.tools.schema import BadArguments, read_arguments

# Name of a set to its tools and its instructions for a model.
SETS: dict[str, tuple[tuple[ToolDefinition, ...], str]] = {
    "default": (default.TOOLS, default.INSTRUCTIONS),
    "reply": (reply.TOOLS, reply.INSTRUCTIONS),
    "agentrepl": (agentrepl.TOOLS, agentrepl.INSTRUCTIONS),
    "nexo": (nexo.TOOLS, nexo.INSTRUCTIONS),
}


class ToolSet:
    """The tools of one set plus `more`, with settings and memory. No connection. Raises KeyError for an unknown set."""

    def __init__(
        self, name: str = "default", settings: ToolSettings | None = None, more: Iterable[ToolDefinition] = ()
    ) -> None:
        tools, self.instructions = SETS[name]
        self.name = name
        own = {tool.name: tool for tool in tools}
        self.tools = own | {tool.name: tool for tool in more if tool.name not in own}
        self.settings = settings or ToolSettings()
        self._context = ToolContext(self.settings, {})

    def start_call(self, name: str, arguments: Mapping[str, Any] | None) -> ToolCall:
        """Start one call. Invalid arguments and refusals of the broker become results that say so."""
        tool = self.tools.get(name)
        if tool is None:
            return ToolResult(text=f"no such tool: {name}. There are: {', '.join(self.tools)}", error=True)
        try:
            return (yield from tool.run(read_arguments(tool.args, arguments), self._context))
        except BadArguments as error:
            return ToolResult(text=str(error), structured={"status": "bad-arguments"}, error=True)
        except ReplError as error:
            return error_result(error)


def mcp(tool: ToolDefinition, settings: ToolSettings) -> dict[str, Any]:
    """Return a tool as in MCP's `tools/list`. Hints at MCP's default are left out."""
    hints = (
        {"readOnlyHint": True}
        if tool.read_only
        else {"destructiveHint": tool.destructive, "idempotentHint": tool.idempotent}
    )
    entry = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.text,
        "inputSchema": tool.schema,
        "annotations": {**hints, "openWorldHint": tool.open_world},
    }
    if (output := tool.declared_output(settings)) is not None:
        entry["outputSchema"] = output
    return entry


def openai(tool: ToolDefinition, settings: ToolSettings) -> dict[str, Any]:  # noqa: ARG001
    """Return a tool as in OpenAI's chat completions; not strict, because arguments may be left out."""
    return {"type": "function", "function": {"name": tool.name, "description": tool.text, "parameters": tool.schema}}


def anthropic(tool: ToolDefinition, settings: ToolSettings) -> dict[str, Any]:  # noqa: ARG001
    """Return a tool as in Anthropic's messages."""
    return {"name": tool.name, "description": tool.text, "input_schema": tool.schema}


FORMATS: dict[str, Callable[[ToolDefinition, ToolSettings], dict[str, Any]]] = {
    "mcp": mcp,
    "openai": openai,
    "anthropic": anthropic,
}


def schemas(tools: ToolSet, format: str) -> list[dict[str, Any]]:
    """Return the schemas of the whole set. Raises KeyError for an unknown format."""
    form = FORMATS[format]
    return [form(tool, tools.settings) for tool in tools.tools.values()]

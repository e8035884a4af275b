"""The tool sets by name, and their schemas in the formats of different APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from replctl.client.errors import ReplError
from replctl.tools import default, files, slim
from replctl.tools.base import FollowUps, ToolCall, ToolContext, ToolDefinition, ToolResult, ToolSettings
from replctl.tools.compat import agentrepl, nexo, reply
from replctl.tools.render import error_result
from replctl.tools.schema import BadArguments, read_arguments

# Name of a set to its tools, its instructions for a model, and its tools for what follows an eval.
SETS: dict[str, tuple[tuple[ToolDefinition, ...], str, FollowUps]] = {
    "default": (default.TOOLS, default.INSTRUCTIONS, default.CALLS),
    "full": ((*default.TOOLS, *files.TOOLS), default.INSTRUCTIONS, default.CALLS),
    "slim": (slim.TOOLS, slim.INSTRUCTIONS, slim.CALLS),
    "reply": (reply.TOOLS, reply.INSTRUCTIONS, reply.CALLS),
    "agentrepl": (agentrepl.TOOLS, agentrepl.INSTRUCTIONS, agentrepl.CALLS),
    "nexo": (nexo.TOOLS, nexo.INSTRUCTIONS, FollowUps()),
}


class ToolSet:
    """The tools of one set plus `more`, with settings and memory. No connection. Raises KeyError for an unknown set."""

    def __init__(
        self, name: str = "default", settings: ToolSettings | None = None, more: Iterable[ToolDefinition] = ()
    ) -> None:
        tools, self.instructions, calls = SETS[name]
        self.name = name
        own = {tool.name: tool for tool in tools}
        self.tools = own | {tool.name: tool for tool in more if tool.name not in own}
        self.settings = settings or ToolSettings()
        self._context = ToolContext(self.settings, {}, calls)

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
    """Return a tool as in MCP's `tools/list`, as short as it can be: without hints at MCP's defaults.

    Unknown arguments are refused with a list of those there are, so the schema need not say so.
    """
    hints = {
        "readOnlyHint": tool.read_only or None,
        "destructiveHint": None if tool.destructive or tool.read_only else False,
        "idempotentHint": (tool.idempotent and not tool.read_only) or None,
        "openWorldHint": None if tool.open_world else False,
    }
    schema = {name: part for name, part in tool.schema.items() if name != "additionalProperties"}
    entry = {"name": tool.name, "description": tool.text, "inputSchema": schema}
    if given := {name: hint for name, hint in hints.items() if hint is not None}:
        entry["annotations"] = given
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

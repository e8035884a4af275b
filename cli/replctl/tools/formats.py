"""A tool set's schemas as each kind of API wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replctl.tools.base import ToolDefinition, ToolSettings
from replctl.tools.catalog import ToolSet


def mcp(tool: ToolDefinition, settings: ToolSettings) -> dict[str, Any]:
    """As in the answer to MCP's `tools/list`. A hint that is MCP's default is left out."""
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
    """As in `tools` of OpenAI's chat completions; a function, not strict: arguments may be left out."""
    return {"type": "function", "function": {"name": tool.name, "description": tool.text, "parameters": tool.schema}}


def anthropic(tool: ToolDefinition, settings: ToolSettings) -> dict[str, Any]:  # noqa: ARG001
    """As in `tools` of Anthropic's messages."""
    return {"name": tool.name, "description": tool.text, "input_schema": tool.schema}


FORMATS: dict[str, Callable[[ToolDefinition, ToolSettings], dict[str, Any]]] = {
    "mcp": mcp,
    "openai": openai,
    "anthropic": anthropic,
}


def schemas(tools: ToolSet, format: str) -> list[dict[str, Any]]:
    """The whole set. Raises KeyError for a format that is not known."""
    form = FORMATS[format]
    return [form(tool, tools.settings) for tool in tools.tools.values()]

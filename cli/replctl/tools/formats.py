"""Schemas of a tool set in the formats of different APIs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replctl.tools.base import ToolDefinition, ToolSettings
from replctl.tools.catalog import ToolSet


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

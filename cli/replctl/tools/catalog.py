"""The tool sets by name, and their schemas in the formats of different APIs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

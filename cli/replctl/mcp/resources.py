"""Sessions as MCP resources. Reading one runs no code; listing them starts no broker."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from replctl.client.address import is_listening
from replctl.client.aio import AsyncClient
from replctl.client.errors import ReplError
from replctl.tools.base import ToolCall, ToolRequest, ToolResponse, ToolResult, request
from replctl.tools.catalog import ToolSet
from replctl.tools.runner import run_tool_async
from replctl.tools.text_budget import fold

_URI = re.compile(r"repl://sessions(?:/(?P<name>[^/]+)/(?P<part>variables|transcript|info))?\Z")
_NOT_FOUND = -32002  # up to 2025-11-25; later revisions say "invalid params" instead
_PARTS = {
    "variables": ("application/json", "Variables of the session"),
    "transcript": ("text/plain", "Code that the session ran, with outcomes"),
    "info": ("application/json", "Runtime, directory, process, memory, limits"),
}
MAX_TRANSCRIPT = 100  # evals


class SessionResources:
    """Resources for all sessions. Larger than a tool's result, because a person asked."""

    def __init__(self, tools: ToolSet, client: AsyncClient) -> None:
        self._budget = 10 * tools.settings.budget
        self._client = client

    async def list(
        self, _ctx: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the session list, and for each session its resources."""
        found = [
            types.Resource(
                uri="repl://sessions", name="sessions", description="All sessions", mime_type="application/json"
            )
        ]
        try:
            if is_listening(self._client.address.endpoint):
                for entry in await self._client.sessions():
                    name, path = entry.ref, quote(entry.ref, safe="")
                    found += [
                        types.Resource(
                            uri=f"repl://sessions/{path}/{part}",
                            name=f"{name}/{part}",
                            description=text,
                            mime_type=kind,
                        )
                        for part, (kind, text) in _PARTS.items()
                    ]
        except ReplError:
            pass  # without a broker there are no sessions
        return types.ListResourcesResult(resources=found)

    async def templates(
        self, _ctx: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """List the resource templates of a session."""
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=f"repl://sessions/{{name}}/{part}", name=part, description=text, mime_type=kind
                )
                for part, (kind, text) in _PARTS.items()
            ]
        )

    async def read(
        self, ctx: ServerRequestContext[Any, Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Read one resource."""
        uri = str(params.uri)
        match = _URI.match(uri)
        steps = None if match is None else self._steps(match["name"] and unquote(match["name"]), match["part"])
        answer = None if steps is None else await run_tool_async(steps, self._client)
        if answer is None or answer.error:
            modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
            why = "" if answer is None else f": {answer.text}"
            raise MCPError(types.INVALID_PARAMS if modern else _NOT_FOUND, f"Resource not found{why}", {"uri": uri})
        assert match is not None
        kind = _PARTS[match["part"]][0] if match["part"] else "application/json"
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=kind, text=answer.text)]
        )

    def _steps(self, name: str | None, part: str | None) -> ToolCall:
        try:
            if name is None or part is None:
                facts: Any = (yield from request("ls-sessions")).get("sessions") or []
            elif part == "transcript":
                return (yield from _transcript(name, self._budget))
            else:
                facts = (yield from request("info", session=name)).get("info") or {}
                if part == "variables":
                    facts = facts.get("variables")
        except ReplError as error:
            return ToolResult(text=str(error), error=True)
        return ToolResult(text=json.dumps(facts, indent=1))


def _transcript(name: str, budget: int) -> Generator[ToolRequest, ToolResponse, ToolResult]:
    entries = (yield from request("history", session=name, limit=MAX_TRANSCRIPT)).get("history") or []
    lines = []
    for each in entries:
        words = [word for word in each.get("status") or [] if word != "done"]
        lines.append(f"[{each['eval-id']}] epoch {each['epoch']}, {' '.join(words) or 'ok'}\n{each['code']}\n")
    return ToolResult(text=fold("\n".join(lines) or "no evals", budget, budget).text)

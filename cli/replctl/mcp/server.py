"""MCP handlers: calls of one tool set over one client of the broker, for any transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from replctl import __version__
from replctl.client.aio import AsyncClient
from replctl.client.errors import ReplError
from replctl.client.result import PendingRequest
from replctl.client.start import BrokerReady
from replctl.mcp import prompts, resources
from replctl.mcp.elicitation import InputRequired, ask_approval
from replctl.mcp.progress import report_progress
from replctl.tools.base import ToolDefinition, ToolResult
from replctl.tools.catalog import ToolSet
from replctl.tools.catalog import mcp as described
from replctl.tools.runner import run_tool_async
from replwire.identifiers import MAX_NAME_BYTES

McpRequestContext = ServerRequestContext[Any, Any]

_CANCEL_REASON_WAIT_S = 0.05  # time for the cancelling notification to arrive
_HOUR_MS = 3_600_000


class McpHandlers:
    """State of one MCP server: its tools, its client, and recently abandoned calls."""

    def __init__(
        self, tools: ToolSet, endpoint: str | None, agent: str, start: bool, directory: str | None, binding: str | None
    ) -> None:
        self.tools = tools
        self.client = AsyncClient(
            endpoint, agent, start, self._on_start, None, directory, self._on_mismatch, binding=binding
        )
        self._known_connections = 0  # the client's connection count when its broker was last checked
        self._last_seen: float | None = None  # when that broker was last known to run
        self._lost_sessions: list[str] = []  # sessions lost with the previous broker
        self._mismatch: str | None = None  # version mismatch that has not been reported yet
        self._abandoned_calls: dict[str, str | None] = {}  # call key to the reason the client gave

    def _on_start(self, started: BrokerReady) -> None:
        """Remember the sessions lost with the previous broker, for the next result."""
        self._lost_sessions = started.lost_sessions

    def _on_mismatch(self, text: str) -> None:
        """Remember the version mismatch, for the next result."""
        self._mismatch = text

    async def list_tools(
        self, _ctx: McpRequestContext, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """List all tools; the list never changes."""
        settings = self.tools.settings
        return types.ListToolsResult(
            tools=[types.Tool.model_validate(described(tool, settings)) for tool in self.tools.tools.values()]
        )

    async def call_tool(
        self, ctx: McpRequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Run one call. Failures of the code or the broker are part of its result."""
        tool = self.tools.tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        steps = self.tools.start_call(params.name, params.arguments)
        try:
            async with report_progress(ctx) as on_output:
                answer = await run_tool_async(
                    steps,
                    self.client,
                    on_output,
                    lambda g: self._on_abandoned(ctx, g),
                    partial(ask_approval, ctx, params),
                    _traceparent(ctx),
                )
        except InputRequired as asked:
            return asked.result
        notices = [await self._restart_notice(), self._mismatch]
        self._mismatch = None
        lines = "\n".join(f"[{each}]" for each in notices if each is not None)
        texts = [*answer.blocks, lines] if answer.blocks else [f"{answer.text}\n{lines}"] if lines else [answer.text]
        return self._result(tool, answer, [text for text in texts if text])

    async def _restart_notice(self) -> str | None:
        """Return a one-time notice that the broker was restarted, or None."""
        if self._known_connections == self.client.connection_count:
            return None
        self._known_connections = self.client.connection_count
        now, before = time.monotonic(), self._last_seen
        try:
            up_ms = (await self.client.stats()).get("uptime-ms")
        except ReplError:
            return None
        self._last_seen, lost, self._lost_sessions = time.monotonic(), self._lost_sessions, []
        another = before is not None and up_ms is not None and up_ms / 1000 < now - before
        if not lost and not another:
            return None
        if lost:
            return f"a new broker was started; the previous one ended unexpectedly, losing sessions {', '.join(lost)}"
        return "a new broker was started; sessions that were not left to it are gone"

    def _result(self, tool: ToolDefinition, answer: ToolResult, texts: list[str]) -> types.CallToolResult:
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=text) for text in texts]
        content += [types.ImageContent(type="image", data=each.data, mime_type=each.mime) for each in answer.images]
        result = types.CallToolResult(content=content, is_error=answer.error)
        if tool.declared_output(self.tools.settings) is not None:
            if not answer.error or "status" in answer.structured:
                result.structured_content = answer.structured
        elif facts := {name: answer.structured[name] for name in _META_KEYS if name in answer.structured}:
            result.meta = {"replctl/eval": facts}
        return result

    # A call is cancelled either by the user, who wants the code to stop, or because its client timed out or
    # disconnected, and then the code keeps running. The accompanying notification says which.

    async def note_cancellation(self, ctx: McpRequestContext, call_next: CallNext) -> HandlerResult:
        """Record why a call was cancelled (middleware)."""
        if ctx.method == "notifications/cancelled" and ctx.params is not None:
            call = _call_key(ctx, ctx.params.get("requestId"))
            if call in self._abandoned_calls:
                self._abandoned_calls[call] = str(ctx.params.get("reason") or "")
        return await call_next(ctx)

    def _on_abandoned(self, ctx: McpRequestContext, pending: PendingRequest) -> None:
        if (ending := getattr(ctx.request and ctx.request.state, "ending", None)) is not None and ending():
            return  # the server is stopping, the call was not cancelled
        interrupt = {"request_id": pending.request_id}
        if ctx.request is not None and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self.client.send_nowait("interrupt", interrupt)  # over HTTP, closing the stream is how a call is cancelled
            return
        call = _call_key(ctx, ctx.request_id)
        self._abandoned_calls[call] = None

        def interrupt_if_cancelled() -> None:
            reason = self._abandoned_calls.pop(call, None)
            if reason is not None and "timed out" not in reason.lower() and "timeout" not in reason.lower():
                self.client.send_nowait("interrupt", interrupt)

        asyncio.get_running_loop().call_later(_CANCEL_REASON_WAIT_S, interrupt_if_cancelled)


_META_KEYS = ("status", "session", "eval_id", "epoch", "state")


def _call_key(ctx: McpRequestContext, request_id: Any) -> str:
    """Return a key for a call: its id, and over HTTP its connection."""
    where = ctx.request.headers.get("mcp-session-id", "") if ctx.request is not None else ""
    return f"{where}/{request_id}"


def _traceparent(ctx: McpRequestContext) -> str | None:
    """Return the call's trace context, or None."""
    found = ctx.meta.get("traceparent") if ctx.meta else None
    return found if isinstance(found, str) and len(found) <= MAX_NAME_BYTES else None


def build_server(
    tools: ToolSet,
    endpoint: str | None,
    agent: str,
    directory: str | None = ".",
    *,
    start: bool = True,
    binding: str | None = None,
) -> Server[Any]:
    """Build a server for any number of connections. The first call connects to the broker, or starts it.

    Args:
        tools: The tool set to serve.
        endpoint: Address of the broker; None for the default.
        agent: Agent label.
        directory: The session `default` is that of this directory's project; None for that of the agent.
        start: Start a broker if none is running.
        binding: Label of the interface that the agent is used through.
    """
    handlers = McpHandlers(tools, endpoint, agent, start, directory, binding)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            await handlers.client.disconnect()

    sessions = resources.SessionResources(tools, handlers.client)
    server: Server[Any] = Server(
        "replctl",
        version=__version__,
        title="replctl",
        instructions=tools.instructions or None,
        lifespan=lifespan,
        cache_hints={"tools/list": CacheHint(_HOUR_MS, "public"), "prompts/list": CacheHint(_HOUR_MS, "public")},
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=sessions.list,
        on_list_resource_templates=sessions.templates,
        on_read_resource=sessions.read,
        on_list_prompts=prompts.list_prompts,
        on_get_prompt=prompts.get_prompt,
    )
    server.middleware.append(handlers.note_cancellation)
    return server

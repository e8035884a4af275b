"""Standard input and output: the SDK's transport, plus error responses for invalid lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError


async def serve(server: Server[Any]) -> None:
    """Serve until stdin ends or the reader of stdout is gone. Only the protocol is written to stdout."""
    try:
        async with stdio_server() as (incoming, outgoing), _reject_invalid(incoming, outgoing) as messages:
            await server.run(messages, outgoing, server.create_initialization_options())
    except* BrokenPipeError:
        pass  # the client is gone; its evals keep running


@asynccontextmanager
async def _reject_invalid(incoming: Any, outgoing: Any) -> AsyncIterator[Any]:
    """Pass messages on, and reject invalid ones, for which the SDK sends no response."""
    send, receive = anyio.create_memory_object_stream[Any]()

    async def sort() -> None:
        async with send:
            async for item in incoming:
                if isinstance(item, ValidationError):
                    await outgoing.send(SessionMessage(invalid_message_error(item)))
                elif not isinstance(item, Exception):
                    await send.send(item)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sort)
        yield receive
        tasks.cancel_scope.cancel()


def invalid_message_error(error: ValidationError) -> types.JSONRPCError:
    """Return the error response for an invalid line, with its id if usable (JSON-RPC 2.0, section 5)."""
    flaws = error.errors(include_url=False, include_context=False)
    if (broken := next((flaw for flaw in flaws if flaw["type"] == "json_invalid"), None)) is not None:
        sent = _parse_leniently(broken["input"])
        why = "Parse error: " + ("not one line of JSON" if sent is None else "lone surrogate")
        data = types.ErrorData(code=types.PARSE_ERROR, message=why)
        return types.JSONRPCError(jsonrpc="2.0", id=_usable_id(sent), error=data)
    sent = next((flaw["input"] for flaw in flaws if isinstance(flaw["input"], dict) and "id" in flaw["input"]), None)
    data = types.ErrorData(code=types.INVALID_REQUEST, message="Invalid request: not a JSON-RPC 2.0 message")
    return types.JSONRPCError(jsonrpc="2.0", id=_usable_id(sent), error=data)


def _parse_leniently(line: str) -> Any:
    """Parse a line that may contain lone surrogates, which models write and JSON's grammar allows."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _usable_id(sent: Any) -> str | int | None:
    number = sent.get("id") if isinstance(sent, dict) else None
    return number if isinstance(number, str) or type(number) is int else None

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

from replctl.mcp.early import EarlyExchange


async def serve(server: Server[Any], before: EarlyExchange) -> None:
    """Serve until stdin ends or the reader of stdout is gone. Only the protocol is written to stdout."""
    try:
        async with stdio_server() as (incoming, outgoing), _sort_messages(incoming, outgoing, before) as messages:
            await server.run(messages, _NewAnswers(outgoing, before.answered), server.create_initialization_options())
    except* BrokenPipeError:
        pass  # the client is gone; its evals keep running


class _NewAnswers:
    """The outgoing stream without the answer to `initialize` that was sent before."""

    def __init__(self, stream: Any, answered: str | int | None) -> None:
        self._stream = stream
        self._answered = answered

    async def send(self, item: SessionMessage) -> None:
        """Send a message, unless it is that answer."""
        if self._answered is not None and getattr(item.message, "id", None) == self._answered:
            self._answered = None
        else:
            await self._stream.send(item)

    async def __aenter__(self) -> _NewAnswers:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *why: Any) -> None:
        await self._stream.__aexit__(*why)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _parse_line(line: str) -> SessionMessage | Exception:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError as error:
        return error


@asynccontextmanager
async def _sort_messages(incoming: Any, outgoing: Any, before: EarlyExchange) -> AsyncIterator[Any]:
    """Pass messages on, those from before first, and reject invalid ones, for which the SDK sends no response."""
    send, receive = anyio.create_memory_object_stream[Any]()

    async def items() -> AsyncIterator[Any]:
        for line in before.lines:
            yield _parse_line(line)
        async for item in incoming:
            yield item

    async def sort() -> None:
        async with send:
            async for item in items():
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

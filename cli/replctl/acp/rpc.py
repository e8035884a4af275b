"""JSON-RPC 2.0 with ACP's framing: one message per line. No I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
CANCELLED = -32800
NOT_FOUND = -32002  # defined by ACP: a resource "such as a session or file"

Id = int | str
_MAX_MESSAGE = 300  # characters of an error's message; it is one line

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class RpcError(Exception):
    """A protocol error, sent as a JSON-RPC error. Failures of the user's code are never protocol errors."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = one_line(message)
        self.data = data


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A call that expects a response with its id."""

    id: Id
    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RpcNotification:
    """A call that expects no response."""

    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RpcResponse:
    """The client's response to a request of the adapter: `result` if present, else `error`."""

    id: Id
    result: Any = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class InvalidMessage:
    """A line that is not a valid message: the error response, and the id if it could be read."""

    error: RpcError
    id: Id | None = None


Message = RpcRequest | RpcNotification | RpcResponse | InvalidMessage


def decode(line: bytes) -> Message | None:
    """Decode a line. Returns None for a message to ignore (a response without an id). Never raises.

    A message with a blank or null id is a notification: some clients send cancel with one.
    """
    try:
        message = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return InvalidMessage(RpcError(PARSE_ERROR, "Parse error: not one JSON value in UTF-8"), _lenient_id(line))
    if not isinstance(message, dict):
        return _invalid("a message must be one JSON object; ACP has no batches")
    method = message.get("method")
    name: Any = message.get("id")
    called = "method" in message
    legal = _is_id(name)
    if message.get("jsonrpc") != "2.0":
        return _invalid('jsonrpc must be "2.0"', name if legal and called else None)
    if called:
        return _call(method, name, legal, message)
    if legal and "result" in message:
        return RpcResponse(name, result=message["result"])
    if legal and "error" in message:
        return RpcResponse(name, error=message["error"])
    return None if "result" in message or "error" in message else _invalid("no method, result or error")


def _lenient_id(line: bytes) -> Id | None:
    """Return the id of a request that only a lenient parser accepts (a lone surrogate, a huge number), or None.

    The sender waits for a response with that id.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    name = message.get("id") if isinstance(message, dict) and "method" in message else None
    return name if _is_id(name) and str(name).isprintable() else None  # a lone surrogate could not be sent back


def _call(method: Any, name: Any, legal: bool, message: dict[str, Any]) -> Message:
    echoed = name if legal else None
    if not isinstance(method, str) or not method:
        return _invalid("method must be a string", echoed)
    params = message.get("params", {})
    if not isinstance(params, dict):
        return _invalid("params must be an object", echoed)
    if legal:
        return RpcRequest(name, method, params)
    if name is None or (isinstance(name, str) and not name.strip()):
        return RpcNotification(method, params)
    return _invalid("id must be an integer or a string")


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, int) and not isinstance(value, bool)


def _invalid(why: str, name: Id | None = None) -> InvalidMessage:
    return InvalidMessage(RpcError(INVALID_REQUEST, f"Invalid request: {why}"), name)


def result_line(name: Id, result: Any) -> bytes:
    """Encode a response with a result."""
    return _encode({"jsonrpc": "2.0", "id": name, "result": result}) + b"\n"


def error_line(name: Id | None, error: RpcError) -> bytes:
    """Encode an error response; `name` is None if the request's id could not be read."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    return _encode({"jsonrpc": "2.0", "id": name, "error": body}) + b"\n"


def request_line(name: Id, method: str, params: dict[str, Any]) -> bytes:
    """Encode a request of the adapter."""
    return _encode({"jsonrpc": "2.0", "id": name, "method": method, "params": params}) + b"\n"


def notification_line(method: str, params: dict[str, Any]) -> bytes:
    """Encode a notification of the adapter."""
    return _encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n"


def one_line(text: str) -> str:
    """Return the text on one line, bounded and never empty, for an error message."""
    flat = " ".join(text.split())
    return (flat if len(flat) <= _MAX_MESSAGE else flat[: _MAX_MESSAGE - 1] + "…") or "failed"

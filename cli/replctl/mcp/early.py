"""The first answers over stdio, given before the SDK is imported, which takes longer than all else at the start.

Clients begin with `initialize` and `tools/list`. Both answers are fixed, so they are sent at once; the SDK is imported
afterwards and continues from there. Everything unusual is left to the SDK.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from replctl import __version__
from replctl.tools.catalog import ToolSet, schemas

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")  # revisions that begin with `initialize`
CAPABILITIES = {
    "prompts": {"listChanged": False},
    "resources": {"listChanged": False, "subscribe": False},
    "tools": {"listChanged": False},
}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class EarlyExchange(NamedTuple):
    """Exchange so far, from which the SDK goes on.

    Attributes:
        lines: Messages that the SDK has not seen; the last may be incomplete if the input has ended.
        answered: Id of the `initialize` among them that was answered.
        is_over: Input has ended and nothing is left to answer.
    """

    lines: list[str]
    answered: str | int | None
    is_over: bool


NO_EXCHANGE = EarlyExchange([], None, is_over=False)


class EarlyServer:
    """The state of a conversation before the SDK takes over. `write` sends one line."""

    def __init__(self, tools: ToolSet, write: Callable[[bytes], None]) -> None:
        self._tools = tools
        self._write = write
        self._lines: list[str] = []
        self._answered: str | int | None = None
        self._has_listed = False

    def serve(self, read_line: Callable[[], bytes]) -> EarlyExchange:
        """Answer lines until one is not for here, or the list of tools was given; an empty line ends the input."""
        while (line := read_line()).endswith(b"\n"):
            if not self._handle(line):
                break
            if self._has_listed:
                return EarlyExchange(self._lines, self._answered, is_over=False)
        if line:
            self._lines.append(line.decode("utf-8", "replace"))
        return EarlyExchange(self._lines, self._answered, is_over=not line)

    def _handle(self, line: bytes) -> bool:
        """Answer a line. Returns False if it is for the SDK."""
        try:
            message = _decode(line)
        except msgspec.DecodeError:
            return False
        if message.get("jsonrpc") != "2.0" or message.keys() - {"jsonrpc", "id", "method", "params"}:
            return False
        method, number, params = message.get("method"), message.get("id"), message.get("params", {})
        if self._answered is None:
            return method == "initialize" and self._initialize(line, number, params)
        if method == "notifications/initialized" and "id" not in message and not params:
            self._lines.append(line.decode())
            return True
        if method == "tools/list" and _is_id(number) and params in ({}, None):
            self._send(number, {"tools": schemas(self._tools, "mcp")})
            self._has_listed = True
            return True
        return False

    def _initialize(self, line: bytes, number: Any, params: Any) -> bool:
        """Answer `initialize` if the SDK would certainly accept it."""
        if not _is_id(number) or not isinstance(params, dict):
            return False
        version, client, offers = (params.get(key) for key in ("protocolVersion", "clientInfo", "capabilities"))
        if params.keys() - {"protocolVersion", "clientInfo", "capabilities"} or version not in VERSIONS:
            return False
        if not isinstance(client, dict) or not all(isinstance(client.get(key), str) for key in ("name", "version")):
            return False
        if client.keys() - {"name", "version", "title"} or not isinstance(offers, dict):
            return False
        if not all(isinstance(one, dict) and all(type(v) is bool for v in one.values()) for one in offers.values()):
            return False
        self._answered = number
        self._lines.append(line.decode())
        self._send(number, initialize_result(self._tools, version))
        return True

    def _send(self, number: Any, result: dict[str, Any]) -> None:
        self._write(_encode({"jsonrpc": "2.0", "id": number, "result": result}) + b"\n")


def initialize_result(tools: ToolSet, version: str) -> dict[str, Any]:
    """Return the answer to `initialize`, the same as the SDK's."""
    result = {
        "protocolVersion": version,
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": "replctl", "title": "replctl", "version": __version__},
    }
    return result | ({"instructions": tools.instructions} if tools.instructions else {})


def read_line(fd: int) -> bytes:
    """Return the next line, without reading beyond it; without a newline the input has ended."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def write_line(fd: int, line: bytes) -> None:
    """Write all of a line."""
    view = memoryview(line)
    while view:
        view = view[os.write(fd, view) :]


def _is_id(number: Any) -> bool:
    return isinstance(number, str) or type(number) is int

"""Connection to the ACP client: responses, updates, and requests of the adapter with negative ids and a timeout."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

from replctl.acp import rpc
from replctl.acp.stdio import HIGH_WATER, StdoutWriter
from replwire.terminal import escape_control

MAX_NOTES = 256  # lines on stderr; the client may never read it, and a full pipe would block
_NOTE_CHARS = 200


class DiagnosticsLog:
    """Diagnostics on stderr: each message once, at most `most` different ones."""

    def __init__(self, sink: int = 2, most: int = MAX_NOTES) -> None:
        self._sink, self._most = sink, most
        self._seen: set[str] = set()

    def __call__(self, text: str) -> None:
        flat = escape_control(rpc.one_line(text)[:_NOTE_CHARS])
        if flat in self._seen or len(self._seen) > self._most:
            return
        self._seen.add(flat)
        line = (
            flat
            if len(self._seen) <= self._most
            else f"more than {self._most} different messages; the rest are not shown"
        )
        try:
            os.write(self._sink, f"replctl acp: {line}\n".encode(errors="replace"))
        except OSError:  # stderr has no reader
            pass


class AcpClientConnection:
    """The connection to the ACP client; the only place that writes to it."""

    def __init__(self, writer: StdoutWriter, notes: DiagnosticsLog) -> None:
        self._writer = writer
        self.note = notes
        self._ids = itertools.count(-1, -1)  # negative, so they cannot collide with a client's ids
        self._requests: dict[int, asyncio.Future[rpc.RpcResponse | None]] = {}

    @property
    def is_slow(self) -> bool:
        """True if the client is so far behind that live output should wait."""
        return self._writer.backlog > HIGH_WATER

    async def drain(self) -> None:
        """Wait until the client has read most of the pending output."""
        await self._writer.drain()

    def send_result(self, name: rpc.Id, result: dict[str, Any]) -> None:
        """Send the result of a client's request."""
        self._writer.send(rpc.result_line(name, result))

    def send_error(self, name: rpc.Id | None, error: rpc.RpcError) -> None:
        """Send an error response."""
        self._writer.send(rpc.error_line(name, error))

    def send_update(self, session: str, variant: str, /, **fields: Any) -> None:
        """Send a `session/update` notification."""
        params = {"sessionId": session, "update": {"sessionUpdate": variant, **fields}}
        self._writer.send(rpc.notification_line("session/update", params))

    def send_request(self, method: str, params: dict[str, Any]) -> int:
        """Send a request to the client and return its id, for `wait_response`."""
        name = next(self._ids)
        self._requests[name] = asyncio.get_running_loop().create_future()
        self._writer.send(rpc.request_line(name, method, params))
        return name

    async def wait_response(self, name: int, seconds: float) -> rpc.RpcResponse | None:
        """Return the client's response, or None after `seconds` or if the request was cancelled."""
        try:
            async with asyncio.timeout(seconds):
                return await self._requests[name]
        except TimeoutError:
            return None
        finally:
            del self._requests[name]

    def cancel_request(self, name: int) -> None:
        """Stop waiting for a response; a late one is dropped."""
        self._resolve(name, None)

    def on_response(self, response: rpc.RpcResponse) -> None:
        """Deliver a response to the request that waits for it; drop it if none does."""
        if isinstance(response.id, str) or not self._resolve(response.id, response):
            self.note("dropped an unexpected response")

    def _resolve(self, name: int, response: rpc.RpcResponse | None) -> bool:
        future = self._requests.get(name)
        if future is None or future.done():
            return False
        future.set_result(response)
        return True

"""What is said to the client: answers, updates, and requests of ours with negative ids and a deadline."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

from replctl.acp import rpc
from replctl.acp.stdio import HIGH_WATER, StdoutWriter
from replwire.terminal import escape_control

MAX_NOTES = 256  # lines on stderr; a client may never read it, and a full pipe would stop us
_NOTE_CHARS = 200


class DiagnosticsLog:
    """Diagnostics for whoever reads stderr: each once, bounded, and a last line when there are more."""

    def __init__(self, sink: int = 2, most: int = MAX_NOTES) -> None:
        self._sink, self._most = sink, most
        self._seen: set[str] = set()

    def __call__(self, text: str) -> None:
        flat = escape_control(rpc.one_line(text)[:_NOTE_CHARS])
        if flat in self._seen or len(self._seen) > self._most:
            return
        self._seen.add(flat)
        line = flat if len(self._seen) <= self._most else f"more than {self._most} different notes; no more are shown"
        try:
            os.write(self._sink, f"replctl acp: {line}\n".encode(errors="replace"))
        except OSError:  # nobody reads it
            pass


class AcpClientConnection:
    """The client, as the one place that writes to it."""

    def __init__(self, writer: StdoutWriter, notes: DiagnosticsLog) -> None:
        self._writer = writer
        self.note = notes
        self._ids = itertools.count(-1, -1)  # ours are below zero: no client counts down
        self._requests: dict[int, asyncio.Future[rpc.RpcResponse | None]] = {}

    @property
    def is_slow(self) -> bool:
        """Whether the client leaves so much unread that live output should wait."""
        return self._writer.backlog > HIGH_WATER

    async def drain(self) -> None:
        """Wait until the client has taken most of what it was sent."""
        await self._writer.drain()

    def send_result(self, name: rpc.Id, result: dict[str, Any]) -> None:
        """Answer a request."""
        self._writer.send(rpc.result_line(name, result))

    def send_error(self, name: rpc.Id | None, error: rpc.RpcError) -> None:
        """Answer with an error."""
        self._writer.send(rpc.error_line(name, error))

    def send_update(self, session: str, variant: str, /, **fields: Any) -> None:
        """A `session/update`."""
        params = {"sessionId": session, "update": {"sessionUpdate": variant, **fields}}
        self._writer.send(rpc.notification_line("session/update", params))

    def send_request(self, method: str, params: dict[str, Any]) -> int:
        """Send a request of ours; its id, for `response`."""
        name = next(self._ids)
        self._requests[name] = asyncio.get_running_loop().create_future()
        self._writer.send(rpc.request_line(name, method, params))
        return name

    async def wait_response(self, name: int, seconds: float) -> rpc.RpcResponse | None:
        """The client's answer to a request of ours, or None when it does not come in time or was withdrawn."""
        try:
            async with asyncio.timeout(seconds):
                return await self._requests[name]
        except TimeoutError:
            return None
        finally:
            del self._requests[name]

    def cancel_request(self, name: int) -> None:
        """Wait for an answer no longer; one that still comes is dropped."""
        self._resolve(name, None)

    def on_response(self, response: rpc.RpcResponse) -> None:
        """An answer has come. One that nobody waits for is dropped."""
        if isinstance(response.id, str) or not self._resolve(response.id, response):
            self.note("dropped an answer that nobody waits for")

    def _resolve(self, name: int, response: rpc.RpcResponse | None) -> bool:
        future = self._requests.get(name)
        if future is None or future.done():
            return False
        future.set_result(response)
        return True

"""Relay to a host that gets secrets: TLS ends here, and one request goes on with values in its head."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from replworker.egress.dialer import Unreachable
from replworker.egress.handshake import http_error
from replworker.egress.session_secrets import HostSecrets, SessionSecrets
from replworker.egress.substitution import MAX_HEAD_BYTES, HeadTooLong, Redactor, fill_head, split_head

_HANDSHAKE_S = 15.0
_HEAD_S = 60.0
_CLOSE_S = 2.0
_IDLE_S = 600.0
_CHUNK_BYTES = 64 * 1024

Spend = Callable[[int], bool]


class SecretRelay:
    """One connection of a session to a host that gets secrets.

    Args:
        secrets: The session's secrets.
        host_secrets: Those for the host.
        name: The host.
        spend: Called with each number of bytes; returns whether the session may go on.

    Attributes:
        sent: Bytes to the host.
        received: Bytes from the host.
    """

    def __init__(self, secrets: SessionSecrets, host_secrets: HostSecrets, name: str, spend: Spend) -> None:
        self._secrets = secrets
        self._host_secrets = host_secrets
        self._name = name
        self._spend = spend
        self.sent = self.received = 0

    async def run(self, session: socket.socket, host: socket.socket) -> None:
        """Serve one request; both connections are closed at the end.

        Raises:
            Unreachable: the host's certificate is not trusted, or it speaks no TLS
            OSError: a connection is broken
            TimeoutError: the program or the host is too slow
        """
        async with asyncio.timeout(_HANDSHAKE_S):
            inside = await _accept_tls(session.dup(), self._secrets.context_for(self._name))
        try:
            outside = await self._connect_tls(host, inside)
        except BaseException:
            await _close(inside[1])
            raise
        try:
            await self._serve(inside, outside)
        finally:
            await _close(outside[1])
            await _close(inside[1])

    async def _connect_tls(self, host: socket.socket, inside: _Streams) -> _Streams:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                return await asyncio.open_connection(
                    sock=host.dup(), ssl=self._secrets.trust, server_hostname=self._name
                )
        except (ssl.SSLError, TimeoutError, OSError) as error:
            why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else "it does not speak TLS"
            text = f"{self._name} could not be reached: {why}"
            inside[1].write(http_error("502 Bad Gateway", f"network: {text}"))
            await inside[1].drain()
            raise Unreachable(text) from None

    async def _serve(self, inside: _Streams, outside: _Streams) -> None:
        async with asyncio.timeout(_HEAD_S):
            head, rest = await _read_head(inside)
        await self._send(outside[1], fill_head(head, self._host_secrets.values) + rest)
        up = asyncio.create_task(self._pump_up(inside[0], outside[1]))
        try:
            await self._pump_down(outside[0], inside[1])
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.sent += len(data)
        if not self._spend(len(data)):
            raise ConnectionAbortedError
        writer.write(data)
        await writer.drain()

    async def _pump_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            await self._send(writer, data)

    async def _pump_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redactor = Redactor([*self._host_secrets.values.values()])
        while True:
            async with asyncio.timeout(_IDLE_S):
                data = await reader.read(_CHUNK_BYTES)
            self.received += len(data)
            if not self._spend(len(data)):
                raise ConnectionAbortedError
            writer.write(redactor.feed(data) if data else redactor.finish())
            await writer.drain()
            if not data:
                return


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection in order, and without that if the other end does not take part."""
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


async def _accept_tls(connection: socket.socket, context: ssl.SSLContext) -> _Streams:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def _read_head(inside: _Streams) -> tuple[bytes, bytes]:
    data = b""
    try:
        while (found := split_head(data)) is None:
            more = await inside[0].read(_CHUNK_BYTES)
            if not more:
                raise ConnectionResetError
            data += more
    except HeadTooLong:
        text = f"the request's head has more than {MAX_HEAD_BYTES} bytes"
        inside[1].write(http_error("431 Request Header Fields Too Large", text))
        await inside[1].drain()
        raise ConnectionAbortedError from None
    return found

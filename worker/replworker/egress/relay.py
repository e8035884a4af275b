"""Relay of bytes between two connected sockets on the proxy's loop.

Not by asyncio's streams: these copy each chunk several times, and carry half as much. One buffer serves all relays,
because what a reader cannot take at once is copied out of it before the loop goes on.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

BUFFER_BYTES = 256 * 1024
_IDLE_S = 3600.0  # a connection without a byte for so long is closed
_RESET = struct.pack("ii", 1, 0)


class RelayAborted(Exception):
    """A relay was ended before both sides had closed: by a reset, the idle limit or the limit on bytes."""


class _Direction:
    """Bytes from one socket to another. `unsent` is what the other could not take yet."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.unsent = memoryview(b"")
        self.count = 0
        self.is_over = False


class Relay:
    """Relay between a session and a host.

    Args:
        loop: The loop.
        buffer: A buffer that the relays of this loop share.
        session: The connection from the session.
        host: The connection to the host.
        spend: Called with each number of bytes; returns whether the session may go on.

    Attributes:
        sent: Bytes to the host.
        received: Bytes from the host.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        session: socket.socket,
        host: socket.socket,
        spend: Callable[[int], bool],
    ) -> None:
        self._loop = loop
        self._buffer = buffer
        self._spend = spend
        self._up, self._down = _Direction(session, host), _Direction(host, session)
        self._end: asyncio.Future[None] = loop.create_future()
        self._last = loop.time()

    @property
    def sent(self) -> int:
        return self._up.count

    @property
    def received(self) -> int:
        return self._down.count

    async def run(self) -> None:
        """Relay until both sides have closed.

        Raises:
            RelayAborted: the connection was ended otherwise
        """
        for way in (self._up, self._down):
            self._loop.add_reader(way.source, self._on_readable, way)
        self._idle_timer = self._loop.call_later(_IDLE_S, self._on_idle)
        try:
            await self._end
        finally:
            self._idle_timer.cancel()
            for way in (self._up, self._down):
                self._loop.remove_reader(way.source)
                self._loop.remove_writer(way.target)

    def _on_idle(self) -> None:
        left = self._last + _IDLE_S - self._loop.time()
        if left <= 0:
            self._abort()
        else:
            self._idle_timer = self._loop.call_later(left, self._on_idle)

    def _on_readable(self, way: _Direction) -> None:
        try:
            count = way.source.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._abort()
            return
        self._last = self._loop.time()
        if not count:
            self._finish(way)
            return
        way.count += count
        if not self._spend(count):
            self._abort()
            return
        data = self._buffer[:count]
        done = self._send(way, data)
        if done is not None and done < count:
            way.unsent = memoryview(bytes(data[done:]))
            self._loop.remove_reader(way.source)
            self._loop.add_writer(way.target, self._on_writable, way)

    def _on_writable(self, way: _Direction) -> None:
        done = self._send(way, way.unsent)
        if done is None:
            return
        way.unsent = way.unsent[done:]
        self._last = self._loop.time()
        if not way.unsent:
            self._loop.remove_writer(way.target)
            self._loop.add_reader(way.source, self._on_readable, way)

    def _send(self, way: _Direction, data: memoryview) -> int | None:
        """Send what the target takes now. Return how much, or None if the connection is broken."""
        try:
            return way.target.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._abort()
            return None

    def _finish(self, way: _Direction) -> None:
        """Pass on the end of one direction; the other goes on."""
        self._loop.remove_reader(way.source)
        way.is_over = True
        try:
            way.target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # reset meanwhile, which the other direction sees
        if self._up.is_over and self._down.is_over and not self._end.done():
            self._end.set_result(None)

    def _abort(self) -> None:
        if not self._end.done():
            self._end.set_exception(RelayAborted())


def close_with_reset(connection: socket.socket) -> None:
    """Close a connection so that its other end gets an error at once, and not an end of data."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        pass
    connection.close()

"""Clients over TCP and Unix sockets: one JSON object a line, for whoever has no ZeroMQ at hand.

The same core, sessions and limits as on the ROUTER. A client is known by the number of its connection.
"""

from __future__ import annotations

import select
import socket
from typing import Protocol

from replbroker.transports.identity import NOBODY, credentials, identity
from replbroker.transports.left_out import LeftOut
from replwire.lines import Lines

PREFIX = b"L"  # the first byte of these peers' names; ZeroMQ's begin with a zero
_READ_BYTES = 64 * 1024
_PENDING_BYTES = 8 * 1024 * 1024  # answers held for a client that does not read; one more and it is given up
_LIVE_BYTES = 1024 * 1024  # beyond this much, live output is left out and counted
Body = bytes | memoryview


class Listener(Protocol):
    """What stands behind the connections."""

    def hear(self, peer: bytes, body: bytes) -> None:
        """A line came."""

    def awaits(self, peer: bytes) -> bool:
        """Whether some request of this connection has no last answer yet."""

    def gone(self, peer: bytes) -> None:
        """A connection ended."""

    def admit(self) -> bytes | None:
        """The refusal for one more connection, or None when it may come."""


class _Connection:
    __slots__ = ("closing", "identity", "left_out", "lines", "pending", "silent", "socket", "who")

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        self.socket = sock
        self.who = _who(sock)
        self.identity = identity(sock)
        self.lines = Lines(max_bytes)
        self.pending = bytearray()
        self.left_out = LeftOut()
        self.closing = False  # once what is pending has left
        self.silent = False  # has said its last; it may still be waiting for answers

    @property
    def hears(self) -> int:
        """What to poll for beside room to write: one that is silent is only awaited to go."""
        return 0 if self.silent else select.EPOLLIN


def _who(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        pid, uid, _ = credentials(sock)
        return f"unix:uid={uid},pid={pid}"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # gone already
        return "tcp:?"
    return f"tcp:{host}:{port}"


class Streams:
    """All line connections. `fileno` is to be polled for reading, `turn` called when it can be read."""

    def __init__(self, listener: Listener, max_bytes: int) -> None:
        self._listener = listener
        self._max_bytes = max_bytes
        self._epoll = select.epoll()
        self._doors: dict[int, socket.socket] = {}
        self._connections: dict[bytes, _Connection] = {}
        self._peers: dict[int, bytes] = {}
        self._count = 0
        self._silent: set[bytes] = set()
        self._last: tuple[bytes, _Connection] | None = None  # who went last: it may have said more before it went

    def __len__(self) -> int:
        return len(self._connections)

    def fileno(self) -> int:
        """One descriptor for all of them."""
        return self._epoll.fileno()

    def add_door(self, door: socket.socket) -> None:
        """Accept clients at a bound socket; it is closed with the rest."""
        door.setblocking(False)
        door.listen(128)
        self._doors[door.fileno()] = door
        self._epoll.register(door, select.EPOLLIN)

    def turn(self) -> None:
        """Handle what has happened."""
        for fd, events in self._epoll.poll(0):
            if fd in self._doors:
                self._accept(self._doors[fd])
            elif (peer := self._peers.get(fd)) is not None:
                if events & select.EPOLLOUT:
                    self._flush(peer)
                    self.let_go()
                if peer not in self._connections:
                    continue
                if events & (select.EPOLLHUP | select.EPOLLERR) and self._connections[peer].silent:
                    self._end(peer)
                elif events & ~select.EPOLLOUT:
                    self._read(peer)

    def _accept(self, door: socket.socket) -> None:
        try:
            sock, _ = door.accept()
        except OSError:  # it went away again, or we are out of descriptors: the next turn tries once more
            return
        sock.setblocking(False)
        refusal = self._listener.admit()
        if refusal is not None:
            try:
                sock.send(refusal + b"\n")
            except OSError:
                pass
            sock.close()
            return
        self._count += 1
        peer = PREFIX + self._count.to_bytes(8, "big")
        self._connections[peer] = _Connection(sock, self._max_bytes)
        self._peers[sock.fileno()] = peer
        self._epoll.register(sock, select.EPOLLIN)

    def _read(self, peer: bytes) -> None:
        connection = self._connections[peer]
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._half_closed(peer, connection)
            return
        if connection.closing:
            self._end(peer)
            return
        for line in connection.lines.feed(data):
            self._listener.hear(peer, line)
        if connection.lines.overrun:
            self.hang_up(peer)

    def _half_closed(self, peer: bytes, connection: _Connection) -> None:
        """It says no more, as `nc -N` does after its last line: it goes once its answers have left, or is gone."""
        connection.silent = True
        self._epoll.modify(connection.socket, connection.hears)
        self._silent.add(peer)
        self.let_go()

    def let_go(self) -> None:
        """End the connections that are silent, wait for nothing more and have all that was for them."""
        for peer in list(self._silent):
            connection = self._connections.get(peer)
            if connection is None:
                self._silent.discard(peer)
            elif not connection.pending and not self._listener.awaits(peer):
                self._end(peer)

    def send(
        self, peer: bytes, body: Body, output_of: str | None = None, before: Body | None = None, event: bool = False
    ) -> bool:
        """Send or hold; leave out live output and events for one that does not read. False when the client is gone."""
        connection = self._connections.get(peer)
        if connection is None:
            return False
        if output_of is not None and len(connection.pending) > _LIVE_BYTES:
            connection.left_out.add(output_of, len(body), event=event)
            return True
        self._own_up(connection)
        if before is not None:
            connection.pending += bytes(before) + b"\n"
        connection.pending += bytes(body) + b"\n"
        if len(connection.pending) > _PENDING_BYTES:
            self._end(peer, tell=False)
            return False
        self._flush(peer)
        return peer in self._connections

    @staticmethod
    def _own_up(connection: _Connection) -> None:
        for notice in connection.left_out.notices() if connection.left_out else ():
            connection.pending += notice + b"\n"

    def _flush(self, peer: bytes) -> None:
        connection = self._connections[peer]
        try:
            while connection.pending:
                sent = connection.socket.send(connection.pending)
                del connection.pending[:sent]
                if not connection.pending:
                    self._own_up(connection)  # nothing else may be sent to it for a long time
        except BlockingIOError:
            self._epoll.modify(connection.socket, connection.hears | select.EPOLLOUT)
            return
        except OSError:
            self._end(peer)
            return
        if connection.closing:
            self._end(peer)
        else:
            self._epoll.modify(connection.socket, connection.hears)

    def identity(self, peer: bytes) -> str:
        """Who the kernel says this is."""
        connection = self._known(peer)
        return NOBODY if connection is None else connection.identity

    def known(self, peer: bytes, identity: str) -> None:
        """It has shown a token."""
        connection = self._connections.get(peer)
        if connection is not None:
            connection.identity = identity

    def describe(self, peer: bytes) -> str:
        """Who this is: the process and user of a Unix socket, the address of a TCP one."""
        connection = self._known(peer)
        return "line:gone" if connection is None else connection.who

    def _known(self, peer: bytes) -> _Connection | None:
        if self._last is not None and self._last[0] == peer:
            return self._last[1]
        return self._connections.get(peer)

    def hang_up(self, peer: bytes) -> None:
        """Close a connection once its answers have left."""
        connection = self._connections.get(peer)
        if connection is not None:
            connection.closing = True
            self._flush(peer)

    def _end(self, peer: bytes, *, tell: bool = True) -> None:
        connection = self._connections.pop(peer)
        del self._peers[connection.socket.fileno()]
        self._silent.discard(peer)
        self._epoll.unregister(connection.socket)
        connection.socket.close()
        self._last = peer, connection
        if tell:
            self._listener.gone(peer)

    def close(self) -> None:
        """Close everything; what can leave at once leaves."""
        for peer in list(self._connections):
            self._flush(peer)
        for connection in self._connections.values():
            connection.socket.close()
        for door in self._doors.values():
            door.close()
        self._epoll.close()

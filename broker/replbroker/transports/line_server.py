"""Clients over TCP and Unix sockets: one JSON object a line, for whoever has no ZeroMQ at hand.

The same core, sessions and limits as on the ROUTER. A client is known by the number of its connection. Connections that
have said more than one line take turns, and few lines are heard a turn, so a flood of one is no stall of another.
"""

from __future__ import annotations

import heapq
import select
import socket
from collections import deque

from replbroker.transports.connection_handler import Body, ConnectionHandler
from replbroker.transports.dropped import DroppedMessages
from replbroker.transports.peer_identity import peer_credentials, peer_groups, peer_identity
from replwire.line_framing import LineFramer

PREFIX = b"L"  # the first byte of these peers' names
_READ_BYTES = 64 * 1024
_LINES_PER_PROCESS = 8  # of all connections together, before workers, other transports and deadlines come
_MAX_PENDING_BYTES = 8 * 1024 * 1024  # answers held for a client that does not read; one more and it is given up
_MAX_LIVE_BYTES = 1024 * 1024  # beyond this much, live output is left out and counted
_MAX_DRAIN_READS = 16  # reads of what a connection has sent and nobody hears, before it is closed


class _LineConnection:
    __slots__ = ("broken", "left_out", "lines", "mask", "paused", "pending", "silent", "socket", "waits", "who")

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        self.socket = sock
        self.who = _describe_socket(sock)
        self.lines = LineFramer(max_bytes)
        self.pending = bytearray()
        self.left_out = DroppedMessages()
        self.silent = False  # has said its last, or is not heard any more; it may still be waiting for answers
        self.broken = False  # nothing can be said to it any more; what it said before is heard all the same
        self.paused = False
        self.waits = False  # for its turn: a line of it is there
        self.mask: int | None = None

    def poll_mask(self) -> int | None:
        """What to poll for: nothing is read that nobody may hear yet, and one that is silent is awaited to go. None
        is not even that."""
        if self.paused and not self.pending and not self.silent:
            return None
        heard = 0 if self.silent or self.paused else select.EPOLLIN
        return heard | (select.EPOLLOUT if self.pending else 0)


def _describe_socket(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        pid, uid, _ = peer_credentials(sock)
        return f"unix:uid={uid},pid={pid}"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # gone already
        return "tcp:?"
    return f"tcp:{host}:{port}"


class LineServer:
    """All line connections. `fileno` is to be polled for reading, `turn` called when it can be read, and when it is
    due."""

    def __init__(self, handler: ConnectionHandler, max_bytes: int) -> None:
        self._handler = handler
        self._max_bytes = max_bytes
        self._epoll = select.epoll()
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[bytes, _LineConnection] = {}
        self._peers: dict[int, bytes] = {}
        self._count = 0
        self._ready: deque[bytes] = deque()  # whose lines wait, the next one first
        self._pauses: list[tuple[float, bytes]] = []  # a heap
        self._closable: set[bytes] = set()  # silent ones that may have all they wait for
        self._last_closed = (b"", "")  # who went last: what it asked may be answered only now

    def fileno(self) -> int:
        """One descriptor for all of them."""
        return self._epoll.fileno()

    def add_listener(self, listener: socket.socket) -> None:
        """Accept clients at a bound socket; it is closed with the rest."""
        listener.setblocking(False)
        listener.listen(128)
        self._listeners[listener.fileno()] = listener
        self._epoll.register(listener, select.EPOLLIN)

    @property
    def due(self) -> float | None:
        """When `turn` is wanted although nothing has come."""
        if self._ready:
            return 0.0
        return self._pauses[0][0] if self._pauses else None

    def process(self, now: float) -> None:
        """Handle what has happened, and hear some lines."""
        for fd, events in self._epoll.poll(0):
            if fd in self._listeners:
                self._accept(self._listeners[fd])
            elif (peer := self._peers.get(fd)) is not None:
                try:
                    self._on_ready(peer, events)
                except MemoryError:  # it may be this one that needs so much
                    self._close_connection(peer)
        while self._pauses and self._pauses[0][0] <= now:
            self._resume(heapq.heappop(self._pauses)[1])
        for _ in range(_LINES_PER_PROCESS):
            if not self._ready:
                break
            peer = self._ready.popleft()
            try:
                self._handle_line(peer)
            except MemoryError:
                if peer in self._connections:
                    self._close_connection(peer)
        self.close_finished()

    def _on_ready(self, peer: bytes, events: int) -> None:
        connection = self._connections[peer]
        if events & select.EPOLLOUT:
            self._flush(peer, connection)
        if peer not in self._connections:
            return
        if events & (select.EPOLLHUP | select.EPOLLERR) and connection.silent:
            self._close_connection(peer)
        elif events & ~select.EPOLLOUT and not (connection.waits or connection.silent or connection.paused):
            self._read(peer, connection)

    def _accept(self, door: socket.socket) -> None:
        try:
            sock, _ = door.accept()
        except OSError:  # it went away again, or we are out of descriptors: the next turn tries once more
            return
        sock.setblocking(False)
        self._count += 1
        peer = PREFIX + self._count.to_bytes(8, "big")
        connection = self._connections[peer] = _LineConnection(sock, self._max_bytes)
        self._peers[sock.fileno()] = peer
        self._update_poll(connection)
        refusal = self._handler.on_connect(peer, peer_identity(sock), peer_groups(sock))
        if refusal is not None:
            self.send(peer, refusal)
            self.hang_up(peer)

    def _read(self, peer: bytes, connection: _LineConnection) -> None:
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # it says no more, as `nc -N` does after its last line
            if connection.broken:
                self._close_connection(peer)
            else:
                self._half_close(peer, connection)
            return
        connection.lines.add(data)
        self._enqueue(peer, connection)

    def _enqueue(self, peer: bytes, connection: _LineConnection) -> None:
        connection.waits = True
        self._ready.append(peer)

    def _handle_line(self, peer: bytes) -> None:
        connection = self._connections.get(peer)
        if connection is None:
            return
        connection.waits = False
        if connection.silent or connection.paused:
            return
        line = connection.lines.next_line()
        if line is None:
            return
        self._handler.handle_request(peer, line)
        if peer in self._connections and not connection.silent:
            self._enqueue(peer, connection)  # there may be more of them

    def pause(self, peer: bytes, until: float) -> None:
        """Hear nothing of a connection for a while; what it sends waits in the kernel, and then with itself."""
        connection = self._connections.get(peer)
        if connection is not None and not connection.paused:
            connection.paused = True
            heapq.heappush(self._pauses, (until, peer))
            self._update_poll(connection)

    def _resume(self, peer: bytes) -> None:
        connection = self._connections.get(peer)
        if connection is not None and connection.paused:
            connection.paused = False
            self._update_poll(connection)
            if not connection.waits:
                self._enqueue(peer, connection)

    def _update_poll(self, connection: _LineConnection) -> None:
        wanted, polled = connection.poll_mask(), connection.mask
        if wanted == polled:
            return
        if wanted is None:
            self._epoll.unregister(connection.socket)
        elif polled is None:
            self._epoll.register(connection.socket, wanted)
        else:
            self._epoll.modify(connection.socket, wanted)
        connection.mask = wanted

    def _half_close(self, peer: bytes, connection: _LineConnection) -> None:
        connection.silent = True
        connection.lines.drop()
        self._update_poll(connection)
        self._closable.add(peer)

    def hang_up(self, peer: bytes, *, at_once: bool = False) -> None:
        """Hear nothing more of a connection; it ends once its answers have left, also those that are still to come.
        `at_once`: whatever it has not read."""
        connection = self._connections.get(peer)
        if connection is not None:
            self._half_close(peer, connection)
            if at_once:
                self._close_connection(peer)

    def close_finished(self) -> None:
        """End the connections that are silent, wait for nothing more and have all that was for them."""
        while self._closable:
            peer = self._closable.pop()
            connection = self._connections.get(peer)
            if connection is not None and not connection.pending and not self._handler.has_pending(peer):
                self._close_connection(peer)

    def send(
        self, peer: bytes, body: Body, output_of: str | None = None, before: Body | None = None, event: bool = False
    ) -> bool:
        """Send or hold; leave out live output and events for one that does not read. False when the client is gone."""
        connection = self._connections.get(peer)
        if connection is None:
            return False
        if connection.broken:
            return True  # not given up yet
        if output_of is not None and len(connection.pending) > _MAX_LIVE_BYTES:
            connection.left_out.add(output_of, body, event=event)
            return True
        self._append_drop_notices(connection)
        if before is not None:
            connection.pending += before
            connection.pending += b"\n"
        connection.pending += body
        connection.pending += b"\n"
        if len(connection.pending) > _MAX_PENDING_BYTES:
            self._close_connection(peer, notify=False)
            return False
        self._flush(peer, connection)
        return peer in self._connections

    @staticmethod
    def _append_drop_notices(connection: _LineConnection) -> None:
        for notice in connection.left_out.take_notices() if connection.left_out else ():
            connection.pending += notice + b"\n"

    def _flush(self, peer: bytes, connection: _LineConnection) -> None:
        try:
            while connection.pending:
                sent = connection.socket.send(connection.pending)
                del connection.pending[:sent]
                if not connection.pending:
                    self._append_drop_notices(connection)  # nothing else may be sent to it for a long time
        except BlockingIOError:
            pass
        except OSError:
            connection.broken = True
            connection.pending.clear()
            if connection.silent:
                self._close_connection(peer)
                return
        self._update_poll(connection)
        if connection.silent and not connection.pending:
            self._closable.add(peer)

    def describe(self, peer: bytes) -> str:
        """Who this is: the process and user of a Unix socket, the address of a TCP one."""
        connection = self._connections.get(peer)
        if connection is not None:
            return connection.who
        return self._last_closed[1] if self._last_closed[0] == peer else "line:gone"

    def _close_connection(self, peer: bytes, *, notify: bool = True) -> None:
        connection = self._connections.pop(peer)
        del self._peers[connection.socket.fileno()]
        if connection.mask is not None:
            self._epoll.unregister(connection.socket)
        self._close_socket(connection)
        self._last_closed = peer, connection.who
        if notify:
            self._handler.on_disconnect(peer)

    @staticmethod
    def _close_socket(connection: _LineConnection) -> None:
        """What was sent and is not read would have the kernel reset the connection, and the last answers be lost."""
        try:
            for _ in range(_MAX_DRAIN_READS if connection.silent else 0):
                if not connection.socket.recv(_READ_BYTES):
                    break
        except OSError:
            pass
        connection.socket.close()

    def close(self) -> None:
        """Close everything; what can leave at once leaves."""
        for peer, connection in list(self._connections.items()):
            self._flush(peer, connection)
        for connection in self._connections.values():
            connection.socket.close()
        for door in self._listeners.values():
            door.close()
        self._epoll.close()

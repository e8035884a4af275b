"""Clients over TCP and Unix sockets, one JSON object a line, for programs without ZeroMQ.

Core, sessions and limits are those of the ROUTER. A client is identified by the number of its connection. Connections
that have sent more than one line take turns, and few lines are read per turn, so a flood of one does not stall another.
"""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections import deque

from replbroker.loop_parts import Register, Unregister
from replbroker.transports.connection_handler import Body, ConnectionHandler
from replbroker.transports.line_connection import READ_BYTES, LineClientConnection
from replbroker.transports.peer_identity import peer_groups, peer_identity

_LINES_PER_TURN = 8  # of all connections together, before workers, other transports and deadlines have their turn
_MAX_PENDING_BYTES = 8 * 1024 * 1024  # replies held for a client that does not read; with more it is cut off
_MAX_LIVE_BYTES = 1024 * 1024  # with more waiting, live output is dropped and counted


class LineServer:
    """All line connections.

    Args:
        handler: Handler of connections and requests.
        max_bytes: Bound on one line, in bytes.
    """

    prefix = b"L"

    def __init__(self, handler: ConnectionHandler, max_bytes: int) -> None:
        self._handler = handler
        self._max_bytes = max_bytes
        self._epoll = select.epoll()
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[bytes, LineClientConnection] = {}
        self._peers: dict[int, bytes] = {}
        self._count = 0
        self._ready: deque[bytes] = deque()  # connections with lines to serve, in turn
        self._pauses: list[tuple[float, bytes]] = []  # heap
        self._closable: set[bytes] = set()  # half-closed connections that may have all they wait for
        self._last_closed = (b"", "")  # its request may be answered only now

    # --- the event loop ---

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Register one descriptor for all connections."""
        register(self._epoll.fileno(), lambda: self.process(time.monotonic()))

    def add_listener(self, listener: socket.socket) -> None:
        """Accept clients at a bound socket; it is closed with the server."""
        listener.setblocking(False)
        listener.listen(128)
        self._listeners[listener.fileno()] = listener
        self._epoll.register(listener, select.EPOLLIN)

    @property
    def due(self) -> float | None:
        """Monotonic time at which `flush` should be called although nothing has come."""
        if self._ready or self._closable:
            return 0.0
        return self._pauses[0][0] if self._pauses else None

    def flush(self, now: float) -> None:
        """Serve lines, and close the connections that have all their replies."""
        self._close_finished()
        self.process(now)

    def _close_finished(self) -> None:
        while self._closable:
            peer = self._closable.pop()
            connection = self._connections.get(peer)
            if connection is not None and not connection.pending and not self._handler.has_pending(peer):
                self._close_connection(peer)

    def process(self, now: float) -> None:
        """Handle what has happened on the sockets, and serve some lines."""
        for fd, events in self._epoll.poll(0):
            if fd in self._listeners:
                self._accept(self._listeners[fd])
            elif (peer := self._peers.get(fd)) is not None:
                try:
                    self._on_ready(peer, events)
                except MemoryError:  # perhaps because of this connection
                    self._close_connection(peer)
        while self._pauses and self._pauses[0][0] <= now:
            self._resume(heapq.heappop(self._pauses)[1])
        for _ in range(_LINES_PER_TURN):
            if not self._ready:
                break
            peer = self._ready.popleft()
            try:
                self._handle_line(peer)
            except MemoryError:
                if peer in self._connections:
                    self._close_connection(peer)

    # --- reading ---

    def _on_ready(self, peer: bytes, events: int) -> None:
        connection = self._connections[peer]
        if events & select.EPOLLOUT:
            self._send_pending(peer, connection)
        if peer not in self._connections:
            return
        if events & (select.EPOLLHUP | select.EPOLLERR) and connection.half_closed:
            self._close_connection(peer)
        elif events & ~select.EPOLLOUT and not (connection.is_queued or connection.half_closed or connection.is_paused):
            self._read(peer, connection)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:  # the client has left, or no descriptor is free: the next turn tries again
            return
        sock.setblocking(False)
        self._count += 1
        peer = self.prefix + self._count.to_bytes(8, "big")
        connection = self._connections[peer] = LineClientConnection(sock, self._max_bytes)
        self._peers[sock.fileno()] = peer
        self._update_poll(connection)
        refusal = self._handler.on_connect(peer, peer_identity(sock), peer_groups(sock))
        if refusal is not None:
            self.send(peer, refusal)
            self.hang_up(peer)

    def _read(self, peer: bytes, connection: LineClientConnection) -> None:
        try:
            data = connection.socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the client has closed its write side, as `nc -N` does after its last line
            if connection.is_broken:
                self._close_connection(peer)
            else:
                self._half_close(peer, connection)
            return
        connection.framer.add(data)
        self._enqueue(peer, connection)

    def _enqueue(self, peer: bytes, connection: LineClientConnection) -> None:
        connection.is_queued = True
        self._ready.append(peer)

    def _handle_line(self, peer: bytes) -> None:
        connection = self._connections.get(peer)
        if connection is None:
            return
        connection.is_queued = False
        if connection.half_closed or connection.is_paused:
            return
        line = connection.framer.next_line()
        if line is None:
            return
        self._handler.handle_request(peer, line)
        if peer in self._connections and not connection.half_closed:
            self._enqueue(peer, connection)  # there may be more lines

    def pause(self, peer: bytes, until: float) -> None:
        """Read nothing from a connection until then; what it sends waits in the kernel, and then at the client."""
        connection = self._connections.get(peer)
        if connection is not None and not connection.is_paused:
            connection.is_paused = True
            heapq.heappush(self._pauses, (until, peer))
            self._update_poll(connection)

    def _resume(self, peer: bytes) -> None:
        connection = self._connections.get(peer)
        if connection is not None and connection.is_paused:
            connection.is_paused = False
            self._update_poll(connection)
            if not connection.is_queued:
                self._enqueue(peer, connection)

    def _update_poll(self, connection: LineClientConnection) -> None:
        wanted, polled = connection.poll_mask(), connection.polled
        if wanted == polled:
            return
        if wanted is None:
            self._epoll.unregister(connection.socket)
        elif polled is None:
            self._epoll.register(connection.socket, wanted)
        else:
            self._epoll.modify(connection.socket, wanted)
        connection.polled = wanted

    # --- sending ---

    def send(
        self, peer: bytes, body: Body, output_of: str | None = None, first: Body | None = None, event: bool = False
    ) -> bool:
        """Send a message, hold it, or drop live output and events; see `ReplyTransport.send`."""
        connection = self._connections.get(peer)
        if connection is None:
            return False
        if connection.is_broken:
            return True  # its end is reported when its requests are served
        if output_of is not None and len(connection.pending) > _MAX_LIVE_BYTES:
            connection.dropped.add(output_of, body, event=event)
            return True
        connection.append_drop_notices()
        if first is not None:
            connection.pending += first
            connection.pending += b"\n"
        connection.pending += body
        connection.pending += b"\n"
        if len(connection.pending) > _MAX_PENDING_BYTES:
            self._close_connection(peer, notify=False)
            return False
        self._send_pending(peer, connection)
        return peer in self._connections

    def _send_pending(self, peer: bytes, connection: LineClientConnection) -> None:
        try:
            while connection.pending:
                sent = connection.socket.send(connection.pending)
                del connection.pending[:sent]
                if not connection.pending:
                    connection.append_drop_notices()  # no other message may follow for a long time
        except BlockingIOError:
            pass
        except OSError:
            connection.is_broken = True
            connection.pending.clear()
            if connection.half_closed:
                self._close_connection(peer)
                return
        self._update_poll(connection)
        if connection.half_closed and not connection.pending:
            self._closable.add(peer)

    def describe(self, peer: bytes) -> str:
        """Return process and user of a Unix socket, the address of a TCP one."""
        connection = self._connections.get(peer)
        if connection is not None:
            return connection.description
        return self._last_closed[1] if self._last_closed[0] == peer else "line:closed"

    # --- closing ---

    def hang_up(self, peer: bytes, *, at_once: bool = False) -> None:
        """Read nothing more, and close the connection once its replies have left, also those still to come.

        With `at_once` it is closed whatever it has not read.
        """
        connection = self._connections.get(peer)
        if connection is not None:
            self._half_close(peer, connection)
            if at_once:
                self._close_connection(peer)

    def disconnect(self, peer: bytes) -> None:
        """Read nothing more, and close the connection once its replies have left."""
        self.hang_up(peer)

    def _half_close(self, peer: bytes, connection: LineClientConnection) -> None:
        connection.half_closed = True
        connection.framer.drop()
        self._update_poll(connection)
        self._closable.add(peer)

    def _close_connection(self, peer: bytes, *, notify: bool = True) -> None:
        connection = self._connections.pop(peer)
        del self._peers[connection.socket.fileno()]
        if connection.polled is not None:
            self._epoll.unregister(connection.socket)
        connection.close()
        self._last_closed = peer, connection.description
        if notify:
            self._handler.on_disconnect(peer)

    def close(self) -> None:
        """Close everything; what can leave at once leaves."""
        for peer, connection in list(self._connections.items()):
            self._send_pending(peer, connection)
        for connection in self._connections.values():
            connection.socket.close()
        for listener in self._listeners.values():
            listener.close()
        self._epoll.close()

"""Clients over ZeroMQ: one JSON object a message. A client that reads too slowly harms only itself."""

from __future__ import annotations

import heapq
import os
import socket
import struct
import time

import zmq

from replbroker.loop_parts import Register, Unregister
from replbroker.transports.client_backlogs import ClientBacklogs
from replbroker.transports.connection_handler import Body, ConnectionHandler
from replbroker.transports.pausable_listeners import PausableListener
from replbroker.transports.router_connection import (
    RouterConnection,
    handshake_of,
    has_custom_routing_id,
    identity_at_handshake,
    read_socket_owner,
)
from replbroker.transports.zmq_sockets import create_router, is_readable, receive_message
from replwire.identities import ANONYMOUS

_HIGH_WATER_MARK = 256  # messages that libzmq holds for one client
_MONITOR = "inproc://clients"
_MONITOR_EVENT = struct.Struct("=HI")  # event and descriptor
_REJECT_GRACE_S = 1.0  # how long a connection without room stays, to receive the reason
_DISCONNECT_GRACE_S = 0.1  # how long the last messages to a muted connection have to leave
_GRACE_INTERVAL_S = 10.0  # between two such graces for connections of one identity: others are closed at once
_MAX_MUTED = 10_000  # closed connections of which something may still be queued
_MUTED_PER_RECEIVE = 100  # messages of these that are skipped before the loop does something else
_LINGER_MS = 1_000  # for the last replies of a broker that ends
_RESUME_FRACTION = 0.75  # of the capacity: with this many connections left, accepting resumes


class ClientRouter:
    """ROUTER socket for clients.

    A client is identified by the number of its connection, never by its routing id, which a client may choose, and
    which another connection may have had.

    Args:
        context: Context of the socket.
        handler: Handler of connections and requests.
        max_bytes: Bound on one message; messages a little over it are delivered, so that the core can answer them.
        capacity: Connections that are accepted at all.
    """

    prefix = b"Z"

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], handler: ConnectionHandler, max_bytes: int, capacity: int
    ) -> None:
        self._handler = handler
        self.socket = create_router(context, max_bytes + 64 * 1024, _HIGH_WATER_MARK)
        self.socket.monitor(_MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._monitor.connect(_MONITOR)
        self._numbers = 0
        self._by_fd: dict[int, RouterConnection] = {}
        self._connections: dict[bytes, RouterConnection] = {}
        self._by_handshake: dict[str, RouterConnection] = {}  # those that have sent something
        self._backlogs = ClientBacklogs(self.socket)
        self._capacity = capacity
        self._listeners: list[PausableListener] = []
        self._is_paused = False
        self._hangups: list[tuple[float, bytes]] = []  # heap of connections to close, by time
        self._muted: dict[str, None] = {}  # handshakes of muted connections, the oldest first
        self._last_grace: dict[str, float] = {}  # by identity

    # --- the event loop ---

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Register the descriptor of the socket's monitor; the socket itself is polled by the loop."""
        register(self._monitor.fileno(), self.read_monitor)
        self.read_monitor()  # a ZeroMQ descriptor signals nothing before its first read

    @property
    def due(self) -> float | None:
        """Monotonic time at which `flush` should be called."""
        retry_at = self._backlogs.due
        if not self._hangups:
            return retry_at
        return self._hangups[0][0] if retry_at is None else min(retry_at, self._hangups[0][0])

    def flush(self, now: float) -> None:
        """Close the connections whose time has come."""
        while self._hangups and self._hangups[0][0] <= now:
            peer = heapq.heappop(self._hangups)[1]
            connection = self._connections.get(peer)
            if connection is not None and (connection.is_muted or not self._handler.has_room(peer)):
                self.hang_up(peer, at_once=True)

    @property
    def has_backlog(self) -> bool:
        """True if some client is full, and `retry` may help."""
        return self._backlogs.due is not None

    def retry(self) -> None:
        """Send what full clients take by now."""
        for peer in self._backlogs.retry():
            self._handler.on_unreachable(peer)

    # --- connections ---

    def add_listener(self, listener: PausableListener) -> None:
        """Pause this listener while no more connections fit."""
        self._listeners.append(listener)

    def refresh_listeners(self) -> None:
        """Tell listeners that their files may have been recreated."""
        for listener in self._listeners:
            listener.refresh()

    def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        for listener in self._listeners:
            try:
                listener.pause() if is_paused else listener.resume()
            except OSError:  # no descriptor, or the directory was deleted: excess connections are closed
                pass

    def read_monitor(self) -> None:
        """Read which connections were made, and which have ended."""
        while self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[operator,arg-type]
            event, fd = _MONITOR_EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_ACCEPTED:
                self._on_accepted(fd)
            elif (connection := self._by_fd.pop(fd, None)) is not None:
                self._on_closed(connection)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _new_peer(self, number: int) -> bytes:
        return self.prefix + number.to_bytes(8, "big")

    def _on_accepted(self, fd: int) -> None:
        number = self._next_number()
        owner = read_socket_owner(fd)
        connection = RouterConnection(self._new_peer(number), number, fd, owner.inode, owner.identity)
        self._by_fd[fd] = self._connections[connection.peer] = connection
        if self._handler.on_connect(connection.peer, owner.identity, owner.groups) is not None:
            heapq.heappush(self._hangups, (time.monotonic() + _REJECT_GRACE_S, connection.peer))
        if len(self._connections) > self._capacity:
            if not self._is_paused:
                self._set_paused(True)
            self.hang_up(connection.peer, at_once=True)

    def _on_closed(self, connection: RouterConnection) -> None:
        del self._connections[connection.peer]
        self._by_handshake.pop(connection.handshake, None)
        self._backlogs.forget(connection.peer)
        self._handler.on_disconnect(connection.peer)
        if self._is_paused and len(self._connections) <= self._capacity * _RESUME_FRACTION:
            self._set_paused(False)

    def next_handshake_number(self) -> int:
        """Return a number for a connection in its handshake.

        It is greater than the number of that connection's accept, and less than the number of the next accept on the
        same descriptor.
        """
        self.read_monitor()
        return self._next_number()

    def receive(self) -> tuple[bytes, bytes] | None:
        """Receive the waiting request.

        Returns:
            Peer and body, or None when only messages of muted connections were waiting.

        Raises:
            zmq.Again: No message waits.
        """
        for _ in range(_MUTED_PER_RECEIVE):
            received = self._receive()
            if received is not None or not is_readable(self.socket):
                return received
        return None

    def _receive(self) -> tuple[bytes, bytes] | None:
        routing_id, frame, is_single = receive_message(self.socket)
        handshake = handshake_of(frame)
        if handshake in self._muted:
            return None
        connection = self._by_handshake.get(handshake)
        if connection is None:
            connection = self._identify(handshake, frame)
        elif connection.is_rejected:  # it was told why
            self.hang_up(connection.peer, at_once=True)
        connection.routing_id = routing_id
        return connection.peer, frame.bytes if is_single else b""

    def _identify(self, handshake: str, frame: zmq.Frame) -> RouterConnection:
        """Return the connection of a first message; a new one in its place if it has ended since."""
        self.read_monitor()
        digits, _, name = handshake.partition(" ")
        number = int(digits) if digits.isdecimal() else 0
        connection = self._by_fd.get(int(frame.get(zmq.SRCFD)))
        if connection is None or connection.handshake or connection.number > number:
            connection = self._closed_connection(frame)
        connection.handshake = handshake
        if connection.peer in self._connections:
            self._by_handshake[handshake] = connection
        if name:
            self._handler.on_identified(connection.peer, name)
        connection.is_rejected = has_custom_routing_id(frame)
        if connection.is_rejected:
            self._handler.on_rejected(connection.peer, "a client must not choose its routing id: leave it to ZeroMQ")
        return connection

    def _closed_connection(self, frame: zmq.Frame) -> RouterConnection:
        """Return a stand-in for a connection that has ended: its messages are served, and answered to nobody.

        On ipc libzmq has asked the kernel for the user at the handshake; on loopback it is too late to ask.
        """
        number = self._next_number()
        connection = RouterConnection(self._new_peer(number), number, -1, 0, ANONYMOUS)
        self._handler.on_message_after_close(connection.peer, identity_at_handshake(frame))
        return connection

    def hang_up(self, peer: bytes, *, at_once: bool = False) -> None:
        """Close a connection at once, dropping what still waits for it.

        Without `at_once` nothing is done: libzmq does not tell when replies have left. libzmq sees the end as if the
        client had closed the connection.
        """
        connection = self._connections.get(peer)
        if connection is None or not at_once:
            return
        try:
            with socket.socket(fileno=os.dup(connection.fd)) as end:
                if os.fstat(end.fileno()).st_ino == connection.inode:
                    end.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed already
            pass

    def disconnect(self, peer: bytes) -> None:
        """Ignore a connection from now on, and close it when its last messages have had time to leave.

        If another connection of the same identity was granted that time a moment ago, this one is closed at once.
        """
        connection = self._connections.get(peer)
        if connection is None:
            return
        connection.is_muted = True
        if connection.handshake:
            self._muted[connection.handshake] = None
        if len(self._muted) > _MAX_MUTED:
            del self._muted[next(iter(self._muted))]
        now = time.monotonic()
        if now - self._last_grace.get(connection.identity, -_GRACE_INTERVAL_S) < _GRACE_INTERVAL_S:
            self.hang_up(peer, at_once=True)
            return
        self._last_grace = {who: at for who, at in self._last_grace.items() if now - at < _GRACE_INTERVAL_S}
        self._last_grace[connection.identity] = now
        heapq.heappush(self._hangups, (now + _DISCONNECT_GRACE_S, peer))

    def pause(self, peer: bytes, until: float) -> None:
        """Do nothing: libzmq reads ahead for all connections alike."""

    # --- sending ---

    def send(
        self, peer: bytes, body: Body, output_of: str | None = None, first: Body | None = None, event: bool = False
    ) -> bool:
        """Send a message, hold it, or drop it; see `ReplyTransport.send`."""
        connection = self._connections.get(peer)
        if connection is None:
            return False
        is_sent = self._backlogs.send(peer, connection.routing_id, body, output_of, first, event)
        if is_sent is None:
            self.hang_up(peer, at_once=True)
        return bool(is_sent)

    def describe(self, peer: bytes) -> str:
        """Return the number of the connection, all that the socket tells."""
        return f"zmq:{int.from_bytes(peer[1:], 'big')}"

    def close(self, linger_ms: int = _LINGER_MS) -> None:
        """Close the socket; replies on their way have this many milliseconds to leave."""
        self._backlogs.retry()
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(linger_ms)
        for listener in self._listeners:
            listener.close()

"""Clients over ZeroMQ: one JSON object a message, a client that reads too slowly hurts itself alone."""

from __future__ import annotations

import heapq
import os
import re
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass

import zmq

from replbroker.transports.connection_handler import Body, ConnectionHandler
from replbroker.transports.dropped import DroppedMessages
from replbroker.transports.pausable_listeners import PausableListener
from replbroker.transports.peer_identity import peer_groups, peer_identity
from replbroker.transports.zmq_sockets import MORE, NOBLOCK, create_router, is_readable, receive_message
from replwire.identities import ANONYMOUS

PREFIX = b"Z"  # the first byte of these peers' names
_HWM = 256  # messages that libzmq holds for one client
_MAX_BACKLOG = 1000  # answers held for a client beyond that; one more and it is given up
_MAX_BACKLOG_BYTES = 8 * 1024 * 1024
_MONITOR = "inproc://clients"
_MAX_BACKLOG_WITH_EVENTS = 500  # from so many messages on that wait, events are left out
_MAX_BACKLOG_BYTES_WITH_EVENTS = 1024 * 1024
_CREDENTIALS = re.compile(r"localhost:(\d+):\d+:\d+\Z")  # uid, gid and pid of a peer at ipc://, as libzmq writes them
_MONITOR_EVENT = struct.Struct("=HI")  # of the monitor: what, and for which descriptor
_REJECT_GRACE_S = 1.0  # how long one too many may stay to hear why it is refused
_DISCONNECT_GRACE_S = 0.1  # how long what was said to one that is not heard any more has to leave
_GRACE_INTERVAL_S = 10.0  # between two of them to connections of one identity: the others end at once
_MAX_MUTED = 10_000  # connections that were hung up on of which something may still be queued
_MUTED_PER_RECEIVE = 100  # of their messages, before workers, other transports and deadlines come
_RESUME_FRACTION = 0.75  # of the room: with so many connections left more are accepted
RETRY_S = 0.01  # how soon a full client is tried again


class _Backlog:
    """What one client could not take yet: answers, and what was left out."""

    __slots__ = ("bytes", "left_out", "messages")

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.bytes = 0
        self.left_out = DroppedMessages()

    @property
    def has_room(self) -> bool:
        """Whether an event may wait here: a burst of them is no sign of a slow reader."""
        return len(self.messages) < _MAX_BACKLOG_WITH_EVENTS and self.bytes < _MAX_BACKLOG_BYTES_WITH_EVENTS

    def push(self, body: bytes) -> None:
        self.messages.append(body)
        self.bytes += len(body)

    def add_drop_notices(self) -> None:
        """Turn what was left out into notices, which are answers."""
        for notice in self.left_out.take_notices():
            self.push(notice)


@dataclass(slots=True)
class _RouterConnection:
    """One that libzmq has accepted. `number` counts accepts and handshakes together."""

    peer: bytes
    number: int
    fd: int
    inode: int  # of its socket: the descriptor may be another's by the time it is used
    identity: str
    handshake: str = ""  # libzmq says it with each message: no client chooses it
    name: str = ""  # of its key
    routing_id: bytes = b""
    is_rejected: bool = False
    is_muted: bool = False


class ClientRouter:
    """The ROUTER for clients. A client is known by the number of its connection, never by its routing id, which it may
    choose, and which another connection may have had."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], max_bytes: int, capacity: int) -> None:
        """`room`: connections that are accepted at all."""
        # What is a little over the limit passes, so that the core can answer it.
        self.socket = create_router(context, max_bytes + 64 * 1024, _HWM)
        self.socket.monitor(_MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._monitor.connect(_MONITOR)
        self.monitor_fd: int = self._monitor.fileno()  # readable: call `watch`
        self.handler: ConnectionHandler
        self._numbers = 0
        self._by_fd: dict[int, _RouterConnection] = {}  # by libzmq's descriptor
        self._connections: dict[bytes, _RouterConnection] = {}
        self._by_handshake: dict[str, _RouterConnection] = {}  # by handshake: those that have said something
        self._backlogs: dict[bytes, _Backlog] = {}
        self._capacity = capacity
        self._listeners: list[PausableListener] = []
        self._is_paused = False
        self._hangups: list[tuple[float, bytes]] = []  # a heap: who is to be hung up on, and when
        self._muted: dict[str, None] = {}  # handshakes of those that were hung up on, the oldest first
        self._last_grace: dict[str, float] = {}  # when one was left to an identity

    # --- connections ---

    def add_listener(self, listener: PausableListener) -> None:
        """One of those that are held while there is no room."""
        self._listeners.append(listener)

    def refresh_listeners(self) -> None:
        """Some have a new file."""
        for listener in self._listeners:
            listener.refresh()

    def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        for listener in self._listeners:
            try:
                listener.pause() if is_paused else listener.resume()
            except OSError:  # without a descriptor, or with a folder that is gone: what comes is hung up on
                pass

    @property
    def due(self) -> float | None:
        """When `flush` is wanted."""
        return self._hangups[0][0] if self._hangups else None

    def flush(self, now: float) -> None:
        """Hang up on those that were one too many and still are, and those that have had their last word."""
        while self._hangups and self._hangups[0][0] <= now:
            peer = heapq.heappop(self._hangups)[1]
            connection = self._connections.get(peer)
            if connection is not None and (connection.is_muted or not self.handler.has_room(peer)):
                self.hang_up(peer)

    def read_monitor(self) -> None:
        """See which connections were made and which have ended."""
        while self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[operator,arg-type]
            event, fd = _MONITOR_EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_ACCEPTED:
                self._on_accepted(fd)
            elif (connection := self._by_fd.pop(fd, None)) is not None:
                self._on_closed(connection)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _on_accepted(self, fd: int) -> None:
        number = self._next_number()
        theirs: tuple[int, ...] = ()
        inode, who = 0, ANONYMOUS
        try:
            with socket.socket(fileno=os.dup(fd)) as end:
                inode, who, theirs = os.fstat(end.fileno()).st_ino, peer_identity(end), peer_groups(end)
        except OSError:  # gone already, which the next event tells
            pass
        connection = _RouterConnection(PREFIX + number.to_bytes(8, "big"), number, fd, inode, who)
        self._by_fd[fd] = self._connections[connection.peer] = connection
        if self.handler.on_connect(connection.peer, who, theirs) is not None:
            heapq.heappush(self._hangups, (time.monotonic() + _REJECT_GRACE_S, connection.peer))
        if len(self._connections) > self._capacity:
            if not self._is_paused:
                self._set_paused(True)
            self.hang_up(connection.peer)

    def _on_closed(self, connection: _RouterConnection) -> None:
        del self._connections[connection.peer]
        self._by_handshake.pop(connection.handshake, None)
        self._backlogs.pop(connection.peer, None)
        self.handler.on_disconnect(connection.peer)
        if self._is_paused and len(self._connections) <= self._capacity * _RESUME_FRACTION:
            self._set_paused(False)

    def next_handshake_number(self) -> int:
        """A number for a connection that shakes hands: greater than that of its accept, less than that of whoever comes
        to its descriptor after it."""
        self.read_monitor()
        return self._next_number()

    def receive(self) -> tuple[bytes, bytes] | None:
        """The request that waits, as peer and body; None when there were only messages of connections that are not
        heard any more. Raises zmq.Again."""
        for _ in range(_MUTED_PER_RECEIVE):
            heard = self._receive()
            if heard is not None or not is_readable(self.socket):
                return heard
        return None

    def _receive(self) -> tuple[bytes, bytes] | None:
        routing_id, frame, alone = receive_message(self.socket)
        try:
            handshake = str(frame.get("User-Id"))
        except (zmq.ZMQError, UnicodeDecodeError):  # none of our handler's
            handshake = ""
        if handshake in self._muted:
            return None
        connection = self._by_handshake.get(handshake)
        if connection is None:
            connection = self._identify(handshake, frame)
        elif connection.is_rejected:  # it was told why
            self.hang_up(connection.peer)
        connection.routing_id = routing_id
        return connection.peer, frame.bytes if alone else b""

    def _identify(self, handshake: str, frame: zmq.Frame) -> _RouterConnection:
        """The connection that a message came by which is its first, or which has ended since."""
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
            self.handler.on_identified(connection.peer, name)
        connection.is_rejected = _has_custom_routing_id(frame)
        if connection.is_rejected:
            self.handler.on_rejected(connection.peer, "a client must not choose its routing id: leave it to ZeroMQ")
        return connection

    def _closed_connection(self, frame: zmq.Frame) -> _RouterConnection:
        """In the place of one that has ended: what it said before is done as its own, and answered to nobody. On ipc
        libzmq has asked the kernel at the handshake; on loopback nobody can be asked any more."""
        credentials = _CREDENTIALS.match(str(frame.get("Peer-Address")))
        number = self._next_number()
        connection = _RouterConnection(PREFIX + number.to_bytes(8, "big"), number, -1, 0, ANONYMOUS)
        self.handler.on_message_after_close(
            connection.peer, ANONYMOUS if credentials is None else f"uid:{credentials[1]}"
        )
        return connection

    def hang_up(self, peer: bytes, *, at_once: bool = True) -> None:
        """End a connection, whatever still waits for it, and not at all without `at_once`: when its answers have left
        nobody knows. libzmq sees its end as if the client had closed it."""
        connection = self._connections.get(peer)
        if connection is None or not at_once:
            return
        try:
            with socket.socket(fileno=os.dup(connection.fd)) as end:
                if os.fstat(end.fileno()).st_ino == connection.inode:
                    end.shutdown(socket.SHUT_RDWR)
        except OSError:  # gone already
            pass

    def disconnect(self, peer: bytes) -> None:
        """Hear nothing more of a connection, and end it when what was said to it has left. Where that was granted to
        another of the same identity just now it ends at once."""
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
            self.hang_up(peer)
            return
        self._last_grace = {who: at for who, at in self._last_grace.items() if now - at < _GRACE_INTERVAL_S}
        self._last_grace[connection.identity] = now
        heapq.heappush(self._hangups, (now + _DISCONNECT_GRACE_S, peer))

    @property
    def has_backlog(self) -> bool:
        """Whether some client has to be tried again soon."""
        return bool(self._backlogs)

    def send(
        self, peer: bytes, body: Body, output_of: str | None = None, before: Body | None = None, event: bool = False
    ) -> bool:
        """Send, hold, or leave out live output, and events when many wait. False when the client is gone.

        `before` and `body` leave as two frames of one message: the client is woken once.
        """
        connection = self._connections.get(peer)
        if connection is None:
            return False
        backlog = self._backlogs.get(peer)
        if backlog is None:
            sent = self._try_send(connection.routing_id, body, before)
            if sent is not None:
                return sent
            backlog = self._backlogs[peer] = _Backlog()
        if output_of is not None and not (event and backlog.has_room):
            backlog.left_out.add(output_of, body, event=event)
            return True
        backlog.add_drop_notices()
        if before is not None:
            backlog.push(bytes(before))
        backlog.push(bytes(body))
        if len(backlog.messages) > _MAX_BACKLOG or backlog.bytes > _MAX_BACKLOG_BYTES:
            del self._backlogs[peer]
            self.hang_up(peer)
            return False
        return True

    def _try_send(self, routing_id: bytes, body: Body, before: Body | None = None) -> bool | None:
        """True: sent. False: the client is gone. None: it is full."""
        send = self.socket.send
        try:
            send(routing_id, MORE)
            if before is not None:
                send(before, MORE)
            send(body, NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError:  # EHOSTUNREACH
            return False
        return True

    def retry(self) -> list[bytes]:
        """Try the full ones again. Returns those that are gone."""
        gone = []
        for peer, backlog in list(self._backlogs.items()):
            sent = self._drain(peer, backlog)
            if sent is not None:
                del self._backlogs[peer]
            if sent is False:
                gone.append(peer)
        return gone

    def _drain(self, peer: bytes, backlog: _Backlog) -> bool | None:
        """True: it has taken everything. False: it is gone. None: it is still full."""
        while True:
            if not backlog.messages:
                backlog.add_drop_notices()
            if not backlog.messages:
                return True
            sent = self._try_send(self._connections[peer].routing_id, backlog.messages[0])
            if not sent:
                return sent
            backlog.bytes -= len(backlog.messages.popleft())

    @staticmethod
    def describe(peer: bytes) -> str:
        """Who this is, as far as the socket tells: the number of the connection."""
        return f"zmq:{int.from_bytes(peer[1:], 'big')}"

    def close(self, linger_ms: int) -> None:
        """Close, giving answers on their way this long to leave."""
        self.retry()
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(linger_ms)
        for listener in self._listeners:
            listener.close()


def _has_custom_routing_id(frame: zmq.Frame) -> bool:
    """Whether the client that sent this gave itself a name."""
    try:
        return frame.get("Identity") != ""
    except UnicodeDecodeError:
        return True
    except zmq.ZMQError:  # it said none
        return False

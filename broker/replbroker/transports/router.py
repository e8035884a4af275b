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

from replbroker.accepting import HeldListener
from replbroker.transports.base import Body, Listener
from replbroker.transports.identity import NOBODY, groups, identity
from replbroker.transports.left_out import LeftOut
from replbroker.transports.sockets import MORE, NOBLOCK, readable, router, take

PREFIX = b"Z"  # the first byte of these peers' names
_HWM = 256  # messages that libzmq holds for one client
_BACKLOG = 1000  # answers held for a client beyond that; one more and it is given up
_BACKLOG_BYTES = 8 * 1024 * 1024
_MONITOR = "inproc://clients"
_EVENTS = 500  # from so many messages on that wait, events are left out
_EVENT_BYTES = 1024 * 1024
_CREDENTIALS = re.compile(r"localhost:(\d+):\d+:\d+\Z")  # uid, gid and pid of a peer at ipc://, as libzmq writes them
_EVENT = struct.Struct("=HI")  # of the monitor: what, and for which descriptor
_EXCESS_S = 1.0  # how long one too many may stay to hear why it is refused
_LAST_WORD_S = 0.1  # how long what was said to one that is not heard any more has to leave
_LAST_WORD_PAUSE_S = 10.0  # between two of them to connections of one identity: the others end at once
_UNHEARD = 10_000  # connections that were hung up on of which something may still be queued
_UNHEARD_A_TURN = 100  # of their messages, before workers, other transports and deadlines come
_AGAIN = 0.75  # of the room: with so many connections left more are accepted
RETRY_S = 0.01  # how soon a full client is tried again


class _Backlog:
    """What one client could not take yet: answers, and what was left out."""

    __slots__ = ("bytes", "left_out", "messages")

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.bytes = 0
        self.left_out = LeftOut()

    @property
    def has_room(self) -> bool:
        """Whether an event may wait here: a burst of them is no sign of a slow reader."""
        return len(self.messages) < _EVENTS and self.bytes < _EVENT_BYTES

    def push(self, body: bytes) -> None:
        self.messages.append(body)
        self.bytes += len(body)

    def own_up(self) -> None:
        """Turn what was left out into notices, which are answers."""
        for notice in self.left_out.notices():
            self.push(notice)


@dataclass(slots=True)
class _Connection:
    """One that libzmq has accepted. `number` counts accepts and handshakes together."""

    peer: bytes
    number: int
    fd: int
    inode: int  # of its socket: the descriptor may be another's by the time it is used
    identity: str
    handshake: str = ""  # libzmq says it with each message: no client chooses it
    name: str = ""  # of its key
    routing_id: bytes = b""
    turned_away: bool = False
    unheard: bool = False


class Clients:
    """The ROUTER for clients. A client is known by the number of its connection, never by its routing id, which it may
    choose, and which another connection may have had."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], max_bytes: int, room: int) -> None:
        """`room`: connections that are accepted at all."""
        # What is a little over the limit passes, so that the core can answer it.
        self.socket = router(context, max_bytes + 64 * 1024, _HWM)
        self.socket.monitor(_MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._monitor.connect(_MONITOR)
        self.monitor_fd: int = self._monitor.fileno()  # readable: call `watch`
        self.listener: Listener
        self._numbers = 0
        self._at: dict[int, _Connection] = {}  # by libzmq's descriptor
        self._connections: dict[bytes, _Connection] = {}
        self._known: dict[str, _Connection] = {}  # by handshake: those that have said something
        self._backlogs: dict[bytes, _Backlog] = {}
        self._room = room
        self._listeners: list[HeldListener] = []
        self._held = False
        self._ending: list[tuple[float, bytes]] = []  # a heap: who is to be hung up on, and when
        self._unheard: dict[str, None] = {}  # handshakes of those that were hung up on, the oldest first
        self._last_words: dict[str, float] = {}  # when one was left to an identity

    # --- connections ---

    def add_listener(self, listener: HeldListener) -> None:
        """One of those that are held while there is no room."""
        self._listeners.append(listener)

    def renew_listeners(self) -> None:
        """Some have a new file."""
        for listener in self._listeners:
            listener.renew()

    def _hold(self, held: bool) -> None:
        self._held = held
        for listener in self._listeners:
            try:
                listener.stop() if held else listener.resume()
            except OSError:  # without a descriptor, or with a folder that is gone: what comes is hung up on
                pass

    @property
    def due(self) -> float | None:
        """When `flush` is wanted."""
        return self._ending[0][0] if self._ending else None

    def flush(self, now: float) -> None:
        """Hang up on those that were one too many and still are, and those that have had their last word."""
        while self._ending and self._ending[0][0] <= now:
            peer = heapq.heappop(self._ending)[1]
            connection = self._connections.get(peer)
            if connection is not None and (connection.unheard or not self.listener.has_room(peer)):
                self.hang_up(peer)

    def watch(self) -> None:
        """See which connections were made and which have ended."""
        while self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[operator,arg-type]
            event, fd = _EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_ACCEPTED:
                self._opened(fd)
            elif (connection := self._at.pop(fd, None)) is not None:
                self._ended(connection)

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _opened(self, fd: int) -> None:
        number = self._next()
        theirs: tuple[int, ...] = ()
        inode, who = 0, NOBODY
        try:
            with socket.socket(fileno=os.dup(fd)) as end:
                inode, who, theirs = os.fstat(end.fileno()).st_ino, identity(end), groups(end)
        except OSError:  # gone already, which the next event tells
            pass
        connection = _Connection(PREFIX + number.to_bytes(8, "big"), number, fd, inode, who)
        self._at[fd] = self._connections[connection.peer] = connection
        if self.listener.opened(connection.peer, who, theirs) is not None:
            heapq.heappush(self._ending, (time.monotonic() + _EXCESS_S, connection.peer))
        if len(self._connections) > self._room:
            if not self._held:
                self._hold(True)
            self.hang_up(connection.peer)

    def _ended(self, connection: _Connection) -> None:
        del self._connections[connection.peer]
        self._known.pop(connection.handshake, None)
        self._backlogs.pop(connection.peer, None)
        self.listener.gone(connection.peer)
        if self._held and len(self._connections) <= self._room * _AGAIN:
            self._hold(False)

    def handshake(self) -> int:
        """A number for a connection that shakes hands: greater than that of its accept, less than that of whoever comes
        to its descriptor after it."""
        self.watch()
        return self._next()

    def receive(self) -> tuple[bytes, bytes] | None:
        """The request that waits, as peer and body; None when there were only messages of connections that are not
        heard any more. Raises zmq.Again."""
        for _ in range(_UNHEARD_A_TURN):
            heard = self._receive()
            if heard is not None or not readable(self.socket):
                return heard
        return None

    def _receive(self) -> tuple[bytes, bytes] | None:
        routing_id, frame, alone = take(self.socket)
        try:
            handshake = str(frame.get("User-Id"))
        except (zmq.ZMQError, UnicodeDecodeError):  # none of our handler's
            handshake = ""
        if handshake in self._unheard:
            return None
        connection = self._known.get(handshake)
        if connection is None:
            connection = self._meet(handshake, frame)
        elif connection.turned_away:  # it was told why
            self.hang_up(connection.peer)
        connection.routing_id = routing_id
        return connection.peer, frame.bytes if alone else b""

    def _meet(self, handshake: str, frame: zmq.Frame) -> _Connection:
        """The connection that a message came by which is its first, or which has ended since."""
        self.watch()
        digits, _, name = handshake.partition(" ")
        number = int(digits) if digits.isdecimal() else 0
        connection = self._at.get(int(frame.get(zmq.SRCFD)))
        if connection is None or connection.handshake or connection.number > number:
            connection = self._departed(frame)
        connection.handshake = handshake
        if connection.peer in self._connections:
            self._known[handshake] = connection
        if name:
            self.listener.identified(connection.peer, name)
        connection.turned_away = _chose_routing_id(frame)
        if connection.turned_away:
            self.listener.turned_away(connection.peer, "a client must not choose its routing id: leave it to ZeroMQ")
        return connection

    def _departed(self, frame: zmq.Frame) -> _Connection:
        """In the place of one that has ended: what it said before is done as its own, and answered to nobody. On ipc
        libzmq has asked the kernel at the handshake; on loopback nobody can be asked any more."""
        credentials = _CREDENTIALS.match(str(frame.get("Peer-Address")))
        number = self._next()
        connection = _Connection(PREFIX + number.to_bytes(8, "big"), number, -1, 0, NOBODY)
        self.listener.departed(connection.peer, NOBODY if credentials is None else f"uid:{credentials[1]}")
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
        connection.unheard = True
        if connection.handshake:
            self._unheard[connection.handshake] = None
        if len(self._unheard) > _UNHEARD:
            del self._unheard[next(iter(self._unheard))]
        now = time.monotonic()
        if now - self._last_words.get(connection.identity, -_LAST_WORD_PAUSE_S) < _LAST_WORD_PAUSE_S:
            self.hang_up(peer)
            return
        self._last_words = {who: at for who, at in self._last_words.items() if now - at < _LAST_WORD_PAUSE_S}
        self._last_words[connection.identity] = now
        heapq.heappush(self._ending, (now + _LAST_WORD_S, peer))

    @property
    def backlogged(self) -> bool:
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
            sent = self._try(connection.routing_id, body, before)
            if sent is not None:
                return sent
            backlog = self._backlogs[peer] = _Backlog()
        if output_of is not None and not (event and backlog.has_room):
            backlog.left_out.add(output_of, body, event=event)
            return True
        backlog.own_up()
        if before is not None:
            backlog.push(bytes(before))
        backlog.push(bytes(body))
        if len(backlog.messages) > _BACKLOG or backlog.bytes > _BACKLOG_BYTES:
            del self._backlogs[peer]
            self.hang_up(peer)
            return False
        return True

    def _try(self, routing_id: bytes, body: Body, before: Body | None = None) -> bool | None:
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
                backlog.own_up()
            if not backlog.messages:
                return True
            sent = self._try(self._connections[peer].routing_id, backlog.messages[0])
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


def _chose_routing_id(frame: zmq.Frame) -> bool:
    """Whether the client that sent this gave itself a name."""
    try:
        return frame.get("Identity") != ""
    except UnicodeDecodeError:
        return True
    except zmq.ZMQError:  # it said none
        return False

"""Clients over ZeroMQ: one JSON object a message, a client that reads too slowly hurts itself alone."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections import deque

import zmq

from replbroker.transports.identity import NOBODY, identity
from replbroker.transports.left_out import LeftOut
from replbroker.transports.sockets import MORE, NOBLOCK, router, take

_HWM = 256  # messages that libzmq holds for one client
_BACKLOG = 1000  # answers held for a client beyond that; one more and it is given up
_BACKLOG_BYTES = 8 * 1024 * 1024
_MONITOR = "inproc://clients"
_EVENTS = 500  # from so many messages on that wait, events are left out
_EVENT_BYTES = 1024 * 1024
_CREDENTIALS = re.compile(r"localhost:(\d+):\d+:\d+\Z")  # uid, gid and pid of a peer at ipc://, as libzmq writes them
_EVENT = struct.Struct("=HI")  # of the monitor: what, and for which descriptor
Body = bytes | memoryview
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


class Clients:
    """The ROUTER for clients. A client is known by the routing id that libzmq gave its connection."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], max_bytes: int) -> None:
        # What is a little over the limit passes, so that the core can answer it.
        self.socket = router(context, max_bytes + 64 * 1024, _HWM)
        self.socket.monitor(_MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._monitor.connect(_MONITOR)
        self.monitor_fd: int = self._monitor.fileno()  # readable: call `count`
        self.connections = 0
        self._at: dict[int, bytes] = {}  # who was met at which descriptor of libzmq's
        self._left: list[bytes] = []
        self._backlogs: dict[bytes, _Backlog] = {}

    def receive(self) -> tuple[bytes, bytes, zmq.Frame]:
        """The request that waits, as peer, body, and what `identity` is asked with."""
        return take(self.socket)

    def meet(self, peer: bytes, frame: zmq.Frame) -> str:
        """Who sent this: the name of its key, or what the kernel says of its connection. `count` has to be called
        before: whoever had the descriptor earlier goes first."""
        try:
            self._at[int(frame.get(zmq.SRCFD))] = peer
        except zmq.ZMQError:
            pass
        try:
            name = frame.get("User-Id")
        except zmq.ZMQError:  # no key
            name = ""
        if name:
            return str(name)
        try:
            # libzmq has asked the kernel at the handshake. The descriptor may be another client's by now.
            if (credentials := _CREDENTIALS.match(str(frame.get("Peer-Address")))) is not None:
                return f"uid:{credentials[1]}"
            with socket.socket(fileno=os.dup(int(frame.get(zmq.SRCFD)))) as end:
                return identity(end)
        except (OSError, zmq.ZMQError):
            return NOBODY

    def count(self) -> int:
        """How many clients are connected."""
        while self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[operator,arg-type]
            event, fd = _EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            self.connections += 1 if event == zmq.EVENT_ACCEPTED else -1
            if event == zmq.EVENT_DISCONNECTED and (peer := self._at.pop(fd, None)) is not None:
                self._left.append(peer)
        return self.connections

    def left(self) -> list[bytes]:
        """Whose connections have ended since this was asked last. What they sent before may still come."""
        left, self._left = self._left, []
        return left

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
        backlog = self._backlogs.get(peer)
        if backlog is None:
            sent = self._try(peer, body, before)
            if sent is not None:
                return sent
            backlog = self._backlogs[peer] = _Backlog()
        if output_of is not None and not (event and backlog.has_room):
            backlog.left_out.add(output_of, len(body), event=event)
            return True
        backlog.own_up()
        if before is not None:
            backlog.push(bytes(before))
        backlog.push(bytes(body))
        if len(backlog.messages) > _BACKLOG or backlog.bytes > _BACKLOG_BYTES:
            self.forget(peer)
            return False
        return True

    def _try(self, peer: bytes, body: Body, before: Body | None = None) -> bool | None:
        """True: sent. False: the client is gone. None: it is full."""
        send = self.socket.send
        try:
            send(peer, MORE)
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
            sent = self._try(peer, backlog.messages[0])
            if not sent:
                return sent
            backlog.bytes -= len(backlog.messages.popleft())

    @staticmethod
    def describe(peer: bytes) -> str:
        """Who this is, as far as the socket tells: libzmq's number for the connection."""
        return f"zmq:{peer[1:].hex()}"

    def forget(self, peer: bytes) -> None:
        """Hold nothing for this client any more."""
        self._backlogs.pop(peer, None)

    def close(self, linger_ms: int) -> None:
        """Close, giving answers on their way this long to leave."""
        self.retry()
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(linger_ms)

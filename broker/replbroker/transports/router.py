"""Clients over ZeroMQ: one JSON object a message, a client that reads too slowly hurts itself alone."""

from __future__ import annotations

from collections import Counter, deque

import zmq

from replbroker.transports.sockets import MORE, NOBLOCK, router, take
from replwire.replies import Reply, encode

_HWM = 256  # messages that libzmq holds for one client
_BACKLOG = 1000  # answers held for a client beyond that; one more and it is given up
_BACKLOG_BYTES = 8 * 1024 * 1024
_MONITOR = "inproc://clients"
Body = bytes | memoryview
RETRY_S = 0.01  # how soon a full client is tried again


class _Backlog:
    """What one client could not take yet: answers, and how much live output of which request was left out."""

    __slots__ = ("bytes", "dropped", "messages")

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()
        self.bytes = 0
        self.dropped: Counter[str] = Counter()

    def push(self, body: bytes) -> None:
        self.messages.append(body)
        self.bytes += len(body)

    def own_up(self) -> None:
        """Turn what was left out into notices, which are answers."""
        for request_id, count in self.dropped.items():
            self.push(encode(Reply(id=request_id, status=["output-dropped"], dropped_bytes=count)))
        self.dropped.clear()


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
        self._backlogs: dict[bytes, _Backlog] = {}

    def receive(self) -> tuple[bytes, bytes]:
        """The request that waits, as (peer, body)."""
        return take(self.socket)

    def count(self) -> int:
        """How many clients are connected."""
        while self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:  # type: ignore[operator,arg-type]
            event = int.from_bytes(self._monitor.recv_multipart(zmq.NOBLOCK)[0][:2], "little")
            self.connections += 1 if event == zmq.EVENT_ACCEPTED else -1
        return self.connections

    @property
    def backlogged(self) -> bool:
        """Whether some client has to be tried again soon."""
        return bool(self._backlogs)

    def send(self, peer: bytes, body: Body, output_of: str | None = None, before: Body | None = None) -> bool:
        """Send, hold, or leave out live output. False when the client is gone.

        `before` and `body` leave as two frames of one message: the client is woken once.
        """
        backlog = self._backlogs.get(peer)
        if backlog is None:
            sent = self._try(peer, body, before)
            if sent is not None:
                return sent
            backlog = self._backlogs[peer] = _Backlog()
        if output_of is not None:
            backlog.dropped[output_of] += len(body)
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

"""Messages that wait for ZeroMQ clients which cannot take them yet."""

from __future__ import annotations

import time
from collections import deque

import zmq

from replbroker.transports.connection_handler import Body
from replbroker.transports.dropped import DroppedMessages
from replbroker.transports.zmq_sockets import MORE, NOBLOCK

_MAX_MESSAGES = 1000  # replies held for a client beyond those that libzmq holds; with one more it is cut off
_MAX_BYTES = 8 * 1024 * 1024
_MAX_MESSAGES_WITH_EVENTS = 500  # with more messages waiting, events are dropped
_MAX_BYTES_WITH_EVENTS = 1024 * 1024
_RETRY_S = 0.01  # how soon a full client is tried again


class _Backlog:
    """Messages that one client could not take yet, and those that were dropped."""

    __slots__ = ("bytes", "dropped", "messages", "routing_id")

    def __init__(self, routing_id: bytes) -> None:
        self.routing_id = routing_id
        self.messages: deque[bytes] = deque()
        self.bytes = 0
        self.dropped = DroppedMessages()

    @property
    def has_room_for_event(self) -> bool:
        """True if an event may wait here; a burst of events does not mean that the reader is slow."""
        return len(self.messages) < _MAX_MESSAGES_WITH_EVENTS and self.bytes < _MAX_BYTES_WITH_EVENTS

    def push(self, body: bytes) -> None:
        self.messages.append(body)
        self.bytes += len(body)

    def add_drop_notices(self) -> None:
        """Add notices for the dropped messages; notices count as replies."""
        for notice in self.dropped.take_notices():
            self.push(notice)


class ClientBacklogs:
    """Sender for a ROUTER socket that holds or drops what a full client cannot take."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._backlogs: dict[bytes, _Backlog] = {}
        self._retry_at = 0.0

    @property
    def due(self) -> float | None:
        """Monotonic time at which `retry` should be called, None when no client is full."""
        return self._retry_at if self._backlogs else None

    def send(
        self, peer: bytes, routing_id: bytes, body: Body, output_of: str | None, first: Body | None, event: bool
    ) -> bool | None:
        """Send a message, hold it, or drop it; see `ReplyTransport.send`.

        `first` and `body` leave as two frames of one message, so the client is woken once.

        Returns:
            False when the client is gone, None when too much waits for it: then it gets nothing more.
        """
        backlog = self._backlogs.get(peer)
        if backlog is None:
            is_sent = self._try_send(routing_id, body, first)
            if is_sent is not None:
                return is_sent
            self._retry_at = time.monotonic() + _RETRY_S
            backlog = self._backlogs[peer] = _Backlog(routing_id)
        if output_of is not None and not (event and backlog.has_room_for_event):
            backlog.dropped.add(output_of, body, event=event)
            return True
        backlog.add_drop_notices()
        if first is not None:
            backlog.push(bytes(first))
        backlog.push(bytes(body))
        if len(backlog.messages) > _MAX_MESSAGES or backlog.bytes > _MAX_BYTES:
            del self._backlogs[peer]
            return None
        return True

    def forget(self, peer: bytes) -> None:
        """Drop what waits for a connection that has ended."""
        self._backlogs.pop(peer, None)

    def retry(self) -> list[bytes]:
        """Send what full clients take by now; return the clients that are gone."""
        unreachable = []
        for peer, backlog in list(self._backlogs.items()):
            is_sent = self._drain(backlog)
            if is_sent is not None:
                del self._backlogs[peer]
            if is_sent is False:
                unreachable.append(peer)
        self._retry_at = time.monotonic() + _RETRY_S
        return unreachable

    def _drain(self, backlog: _Backlog) -> bool | None:
        """Return True when all was sent, False when the client is gone, None when it is still full."""
        while True:
            if not backlog.messages:
                backlog.add_drop_notices()
            if not backlog.messages:
                return True
            is_sent = self._try_send(backlog.routing_id, backlog.messages[0])
            if not is_sent:
                return is_sent
            backlog.bytes -= len(backlog.messages.popleft())

    def _try_send(self, routing_id: bytes, body: Body, first: Body | None = None) -> bool | None:
        """Return True when the message was sent, False when the client is gone, None when it is full."""
        send = self._socket.send
        try:
            send(routing_id, MORE)
            if first is not None:
                send(first, MORE)
            send(body, NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError:  # EHOSTUNREACH
            return False
        return True

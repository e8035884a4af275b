"""The PUB socket: every event for whoever connects, its type as the topic. A slow reader misses events."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from replbroker.core.effects import PublishEvent
from replbroker.loop_parts import Register, Unregister
from replbroker.transports.zmq_sockets import MORE, NOBLOCK, ZAP_DOMAIN, is_readable
from replwire.events import EVENTS

_HIGH_WATER_MARK = 1000  # events that libzmq holds for one reader; it drops the rest


def create_publisher_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Create an XPUB socket that is not bound yet; it delivers readers' subscriptions."""
    socket = context.socket(zmq.XPUB)
    socket.linger = 0
    socket.sndhwm = _HIGH_WATER_MARK
    socket.zap_domain = ZAP_DOMAIN
    socket.maxmsgsize = 1024  # of a subscription
    return socket


class Publisher:
    """Event sink that publishes events.

    Args:
        socket: A bound XPUB socket.
        set_wanted_types: Called with the types that readers have subscribed to; ephemeral events are built only for
            these.
    """

    def __init__(self, socket: zmq.Socket[bytes], set_wanted_types: Callable[[frozenset[str]], None]) -> None:
        self._socket = socket
        self._set_wanted_types = set_wanted_types
        self._topics: set[str] = set()
        self.due: float | None = None

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Register the descriptor of subscriptions."""
        register(self._socket.fileno(), self._read_subscriptions)
        self._read_subscriptions()  # a ZeroMQ descriptor signals nothing before its first read

    def _read_subscriptions(self) -> None:
        is_changed = False
        while is_readable(self._socket):
            message = self._socket.recv(NOBLOCK)
            topic = message[1:].decode("utf-8", "replace")
            if message[:1] == b"\x01":
                self._topics.add(topic)
            elif message[:1] == b"\x00":
                self._topics.discard(topic)
            is_changed = True
        if is_changed:
            types = (name for name in EVENTS if any(name.startswith(topic) for topic in self._topics))
            self._set_wanted_types(frozenset(types))

    def on_event(self, event: PublishEvent, now: float) -> None:  # noqa: ARG002
        """Send two frames: the type, and the event."""
        try:
            self._socket.send(event.type.encode(), MORE)
            self._socket.send(event.body, NOBLOCK)
        except zmq.ZMQError:
            pass
        self._read_subscriptions()  # sending takes subscriptions in without signalling them

    def flush(self, now: float) -> None:
        """Do nothing: no event waits here."""

    def close(self) -> None:
        """Close the socket at once."""
        self._socket.close(0)

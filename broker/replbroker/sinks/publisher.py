"""The PUB socket: every event for whoever connects, the topic its type. A reader that is slow misses some."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from replbroker.core.effects import PublishEvent
from replbroker.sinks.event_sink import Register, Unregister
from replbroker.transports.zmq_sockets import MORE, NOBLOCK, ZAP_DOMAIN, is_readable
from replwire.events import EVENTS

_HWM = 1000  # events that libzmq holds for one reader; it drops what comes beyond


def create_publisher_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """An XPUB that is not bound yet. It tells which topics are subscribed to."""
    socket = context.socket(zmq.XPUB)
    socket.linger = 0
    socket.sndhwm = _HWM
    socket.zap_domain = ZAP_DOMAIN
    socket.maxmsgsize = 1024  # of a subscription
    return socket


class Publisher:
    """A watcher. `want` is told which types its readers asked for: ephemeral events are made for them alone."""

    def __init__(self, socket: zmq.Socket[bytes], set_wanted_types: Callable[[frozenset[str]], None]) -> None:
        self._socket = socket
        self._set_wanted_types = set_wanted_types
        self._topics: set[str] = set()
        self.due: float | None = None

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Subscriptions come in here."""
        register(self._socket.fileno(), self._read_subscriptions)
        self._read_subscriptions()  # a descriptor of ZeroMQ tells nothing before it was asked

    def _read_subscriptions(self) -> None:
        changed = False
        while is_readable(self._socket):
            message = self._socket.recv(NOBLOCK)
            topic = message[1:].decode("utf-8", "replace")
            if message[:1] == b"\x01":
                self._topics.add(topic)
            elif message[:1] == b"\x00":
                self._topics.discard(topic)
            changed = True
        if changed:
            self._set_wanted_types(
                frozenset(name for name in EVENTS if any(name.startswith(topic) for topic in self._topics))
            )

    def on_event(self, event: PublishEvent, now: float) -> None:  # noqa: ARG002
        """Two frames: the type, the event."""
        try:
            self._socket.send(event.type.encode(), MORE)
            self._socket.send(event.body, NOBLOCK)
        except zmq.ZMQError:
            pass
        self._read_subscriptions()  # sending takes in subscriptions without a word

    def flush(self, now: float) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Close at once."""
        self._socket.close(0)

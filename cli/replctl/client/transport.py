"""One connection to a broker: a DEALER socket, and the monitor that tells at once when the other end is gone."""

from __future__ import annotations

import select
import struct
import time
from typing import TYPE_CHECKING, Any

import zmq

if TYPE_CHECKING:
    from replwire.keys import ClientKey

# A connection that broke has lost what was under way, and its caller must hear of it: a line never reconnects, it is
# closed long before this. Not -1: libzmq then throws away what had come and was not yet taken.
_RECONNECT_MS = 3_600_000
# A host that vanished without a word is noticed after this long, by the kernel's own probes: they are answered for a
# broker that is stopped, which a heartbeat of ZeroMQ would call gone.
_PROBE_S = 5
_PROBES = 2
SILENCE_MS = 15_000
RECEIVE_HIGH_WATER = (
    100_000  # messages; a burst of live output waits here, while the broker drops what it cannot hand on
)
LINGER_MS = 1_000  # what was sent last (an interrupt, say) still leaves when the program ends right after it

# Longest sleep in one piece. A signal that comes right before a system call interrupts nothing: its handler runs after
# the sleep. So Ctrl-C is heard within this time even then.
_MAX_POLL_MS = 250

_CLOSED_EVENTS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED  # the connect failed
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_AUTH_FAILED_EVENTS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,  # it wants a key, and had hung up before we had read that it does
)
_MONITOR_EVENT = struct.Struct("=HI")
# As plain numbers: pyzmq's are enums, whose `&` runs more python than the call it is made for.
_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)


def _poll_timeout(milliseconds: int | None) -> int:
    return _MAX_POLL_MS if milliseconds is None else min(milliseconds, _MAX_POLL_MS)


class Transport:
    """Bytes to one broker and back. For one thread."""

    def __init__(self, endpoint: str, key: ClientKey | None = None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = self._context.socket(zmq.PAIR)
        self.connected = False  # whether the handshake succeeded
        self.unauthorized = False  # the broker does not know our key, or wants one
        self._closed = False
        self._uses_keys = endpoint.startswith("tcp://")  # elsewhere nobody is asked for a key
        socket = self._socket
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _PROBE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _PROBE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _PROBES)
        socket.setsockopt(zmq.TCP_MAXRT, SILENCE_MS)
        socket.setsockopt(zmq.IPV6, 1)
        socket.monitor("inproc://events", _CLOSED_EVENTS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._monitor.setsockopt(zmq.LINGER, 0)
        self._monitor.connect("inproc://events")
        watch_fd = int(self._monitor.getsockopt(zmq.FD))
        self._poller = select.poll()
        self._poller.register(int(socket.getsockopt(zmq.FD)), select.POLLIN)
        self._poller.register(watch_fd, select.POLLIN)
        self._items: Any = [(socket, _POLLIN), (watch_fd, _POLLIN)]
        self._monitor_poll = (
            select.poll()
        )  # the watch alone: whether anything befell the connection, for one system call
        self._monitor_poll.register(watch_fd, select.POLLIN)
        if key is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
        socket.connect(endpoint)
        self._read_monitor_events()

    @property
    def descriptors(self) -> tuple[int, int]:
        """The two file descriptors for an event loop. They tell edges: after each, take until nothing is left."""
        return int(self._socket.getsockopt(zmq.FD)), int(self._monitor.getsockopt(zmq.FD))

    def send(self, body: bytes) -> bool:
        """Send one message; False when there is nobody to send it to."""
        try:
            self._socket.send(body, _NOBLOCK)
            return True
        except zmq.Again:
            return False

    def receive(self, milliseconds: int | None) -> bytes | None:
        """The next message, waiting for it at most this long (None: without end). None too when it has been a while, or
        something else befell: ask again.

        libzmq's own poll knows of messages that it took in while sending, so nothing has to be asked before or after.
        """
        for ready, _ in zmq.zmq_poll(self._items, _poll_timeout(milliseconds)):
            if ready is self._socket:
                body: bytes = self._socket.recv(_NOBLOCK)
                return body
        return None

    def receive_nowait(self) -> bytes | None:
        """The next message that has come, or None; never waits."""
        if int(self._socket.getsockopt(_EVENTS)) & _POLLIN:  # an exception for "none" would cost more
            return self._socket.recv(_NOBLOCK)
        return None

    def wait(self, milliseconds: int | None, descriptor: int | None = None) -> bool:
        """Wait until something has come or has happened, or it has been a while, at most this long (None: without end).

        True when the descriptor `watch` can be read.
        """
        if descriptor is None:
            self._poller.poll(_poll_timeout(milliseconds))
            return False
        self._poller.register(descriptor, select.POLLIN)
        try:
            return any(fd == descriptor for fd, _ in self._poller.poll(_poll_timeout(milliseconds)))
        finally:
            self._poller.unregister(descriptor)

    def wait_for_handshake(self, seconds: float) -> bool:
        """Wait for the handshake; False when the connection ended without one. True too when it takes longer."""
        deadline = time.monotonic() + seconds
        while not self.is_closed() and not self.connected and (left := deadline - time.monotonic()) > 0:
            self._monitor_poll.poll(left * 1000)
        return self.connected or not self._closed

    def is_closed(self) -> bool:
        """Whether the connection has ended. What had come before can still be taken."""
        if self._monitor_poll.poll(0):
            self._read_monitor_events()
        return self._closed

    def _read_monitor_events(self) -> None:
        while int(self._monitor.getsockopt(_EVENTS)) & _POLLIN:
            event, _ = _MONITOR_EVENT.unpack(self._monitor.recv_multipart()[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
            else:
                self.unauthorized = self.unauthorized or (self._uses_keys and event in _AUTH_FAILED_EVENTS)
                self._closed = True

    def close(self) -> None:
        """End the connection; messages that were sent get a moment to leave."""
        self._socket.monitor(None, 0)
        self._monitor.close(0)
        self._socket.close(0 if self._closed else LINGER_MS)
        self._context.term()

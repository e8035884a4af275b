"""One connection to a broker: a DEALER socket, and a monitor that reports the end of the connection at once."""

from __future__ import annotations

import select
import struct
import time
from typing import TYPE_CHECKING, Any

import zmq

from replctl.client.errors import ReplError

if TYPE_CHECKING:
    from replctl.client.ssh import SshTunnel
    from replwire.keys import ClientKey

# A broken connection has lost its messages in transit, and the caller must learn that: a transport never reconnects.
# It is closed long before this interval. Not -1: libzmq would then discard messages not yet received.
_RECONNECT_MS = 3_600_000
# Time until a vanished host is detected by the kernel's keepalive probes. The kernel answers them for a stopped
# broker too, which a ZeroMQ heartbeat would report as gone.
_PROBE_S = 5
_PROBES = 2
SILENCE_MS = 15_000
RECEIVE_HIGH_WATER = 100_000  # messages; a burst of live output waits here, while the broker drops the excess
LINGER_MS = 1_000  # the last message (an interrupt, say) is still sent if the program exits right after it

# Longest single sleep. A signal right before a system call does not interrupt it, and its handler runs after the
# sleep: this bounds the delay of Ctrl-C.
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
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,  # a key is required, and the broker closed before that was read
)
_MONITOR_EVENT = struct.Struct("=HI")
# Plain integers: `&` of pyzmq's enums is slower than the call itself.
_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)


def _poll_timeout(milliseconds: int | None) -> int:
    return _MAX_POLL_MS if milliseconds is None else min(milliseconds, _MAX_POLL_MS)


class Transport:
    """Sends messages to one broker and receives its replies. Not thread-safe."""

    def __init__(
        self, endpoint: str, key: ClientKey | None = None, name: str | None = None, tunnel: SshTunnel | None = None
    ) -> None:
        self._name = name or endpoint  # in messages
        self._tunnel = tunnel
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._monitor = self._context.socket(zmq.PAIR)
        self.connected = False  # the handshake succeeded
        self.unauthorized = False  # the broker requires a key or rejected ours
        self._closed = False
        self._uses_keys = endpoint.startswith("tcp://")  # only TCP requires a key
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
        self._monitor_poll = select.poll()  # polls the monitor alone, with one system call
        self._monitor_poll.register(watch_fd, select.POLLIN)
        if key is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
        socket.connect(endpoint)
        self._read_monitor_events()

    @property
    def descriptors(self) -> tuple[int, int]:
        """The two descriptors for an event loop. They are edge-triggered: after each event, receive all messages."""
        return int(self._socket.getsockopt(zmq.FD)), int(self._monitor.getsockopt(zmq.FD))

    def send(self, body: bytes) -> bool:
        """Send one message. Returns False if the connection cannot take it."""
        try:
            self._socket.send(body, _NOBLOCK)
            return True
        except zmq.Again:
            return False

    def receive(self, milliseconds: int | None) -> bytes | None:
        """Return the next message, waiting at most `milliseconds` (None: no limit).

        Returns None as well after a shorter sleep or a connection event: call again. libzmq's own poll knows of
        messages that it read while sending, so nothing needs to be checked before or after.
        """
        for ready, _ in zmq.zmq_poll(self._items, _poll_timeout(milliseconds)):
            if ready is self._socket:
                body: bytes = self._socket.recv(_NOBLOCK)
                return body
        return None

    def receive_nowait(self) -> bytes | None:
        """Return the next message if one has arrived, else None; never waits."""
        if int(self._socket.getsockopt(_EVENTS)) & _POLLIN:  # cheaper than an exception for "none"
            return self._socket.recv(_NOBLOCK)
        return None

    def wait(self, milliseconds: int | None, descriptor: int | None = None) -> bool:
        """Wait for a message or a connection event, at most `milliseconds` (None: no limit) or a shorter sleep.

        Returns True if `descriptor` is readable.
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
        """Wait for the handshake. Returns False if the connection ended without one, True also if it takes longer."""
        deadline = time.monotonic() + seconds
        while not self.is_closed() and not self.connected and (left := deadline - time.monotonic()) > 0:
            self._monitor_poll.poll(left * 1000)
        return self.connected or not self._closed

    def is_closed(self) -> bool:
        """Return True if the connection has ended. Messages that arrived before can still be received."""
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

    def closed_error(self) -> ReplError:
        """Return the error for requests that were pending when the connection ended."""
        code, what = ("broker-lost", "went away") if self.connected else ("no-broker", "does not reply")
        if self.unauthorized:
            code, what = "unauthorized", "refused this client's key: set REPLCTL_KEY_FILE to an authorized key's file"
        return ReplError(code, f"the broker at {self._name} {what}")

    def close(self) -> None:
        """Close the connection; messages just sent get a moment to leave."""
        self._socket.monitor(None, 0)
        self._monitor.close(0)
        self._socket.close(0 if self._closed else LINGER_MS)
        self._context.term()
        if self._tunnel is not None:
            self._tunnel.close()

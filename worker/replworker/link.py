"""Socket to the broker, with detection of its disconnection."""

from __future__ import annotations

from collections import deque

import zmq

from replwire.link import FrameKind, HelloBody, encode, pack

_MONITOR = "inproc://link"
_FINAL_SEND_MS = 10_000
# Plain numbers: `&` on pyzmq's enums costs more than the call itself.
_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)


class BrokerLink:
    """A DEALER socket that never blocks; unsent frames are queued, and `is_backpressured` says so."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._context = zmq.Context()
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.rcvhwm = 0  # the core sends one eval at a time and a bounded number of requests
        socket.reconnect_ivl = -1  # never reconnect to another broker
        socket.monitor(_MONITOR, zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED)
        self._monitor = self._context.socket(zmq.PAIR)
        self._monitor.connect(_MONITOR)
        self._pending: deque[bytes] = deque()
        socket.connect(endpoint)
        self.send(pack(FrameKind.HELLO, encode(HelloBody(token))))

        self.monitor_fd: int = self._monitor.fileno()  # when readable, check `is_disconnected`

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """Socket for libzmq's poll; when readable, call `receive`."""
        return self._socket

    def receive(self) -> bytes | None:
        """Return the next frame, or None for a multipart message, which the broker never sends.

        Raises:
            zmq.Again: no frame is waiting
        """
        frame = self._socket.recv(_NOBLOCK, copy=False)
        if not frame.more:
            return frame.bytes
        while frame.more:
            frame = self._socket.recv(_NOBLOCK, copy=False)
        return None

    def is_disconnected(self) -> bool:
        """Return whether the broker has disconnected."""
        return bool(self._monitor.getsockopt(_EVENTS) & _POLLIN)  # type: ignore[operator]

    def send(self, frame: bytes) -> None:
        """Send a frame, or queue it for `flush`."""
        if self._pending or not self._try_send(frame):
            self._pending.append(frame)

    def _try_send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def flush(self) -> None:
        """Send queued frames as far as possible."""
        while self._pending and self._try_send(self._pending[0]):
            self._pending.popleft()

    @property
    def is_backpressured(self) -> bool:
        """True if the broker does not keep up: stop reading output until `flush` has emptied the queue."""
        return bool(self._pending)

    def send_final(self, frame: bytes) -> None:
        """Send a final frame and wait until the broker disconnects."""
        self._socket.sndtimeo = self._socket.rcvtimeo = _FINAL_SEND_MS
        self._socket.send(frame)
        try:
            while not self.is_disconnected():
                self._socket.recv()
        except zmq.Again:
            return

    def close(self) -> None:
        """Close sockets and context."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

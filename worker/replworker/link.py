"""The one socket to the broker. When the broker goes, the link says so, whatever else happens."""

from __future__ import annotations

from collections import deque

import zmq

from replwire.link import FrameKind, HelloBody, encode, pack

_MONITOR = "inproc://link"
_FINAL_SEND_MS = 10_000
# As plain numbers: pyzmq's are enums, whose `&` runs more python than the call it is made for.
_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)


class BrokerLink:
    """A DEALER that never waits: what cannot be sent yet is kept, and `stuffed` asks for less."""

    def __init__(self, endpoint: str, token: str) -> None:
        self._context = zmq.Context()
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.rcvhwm = 0  # the core sends one eval at a time and a bounded number of asks
        socket.reconnect_ivl = -1  # a broker that went away is not to be waited for
        socket.monitor(_MONITOR, zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED)
        self._monitor = self._context.socket(zmq.PAIR)
        self._monitor.connect(_MONITOR)
        self._pending: deque[bytes] = deque()
        socket.connect(endpoint)
        self.send(pack(FrameKind.HELLO, encode(HelloBody(token))))

        self.monitor_fd: int = self._monitor.fileno()  # readable: ask `broken`

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """To be polled with libzmq's own poll; readable: call `receive`."""
        return self._socket

    def receive(self) -> bytes | None:
        """The frame that waits. None for one of several parts: those are not the broker's. Raises zmq.Again."""
        frame = self._socket.recv(_NOBLOCK, copy=False)
        if not frame.more:
            return frame.bytes
        while frame.more:
            frame = self._socket.recv(_NOBLOCK, copy=False)
        return None

    def is_disconnected(self) -> bool:
        """Whether the connection to the broker is gone."""
        return bool(self._monitor.getsockopt(_EVENTS) & _POLLIN)  # type: ignore[operator]

    def send(self, frame: bytes) -> None:
        """Send, or keep for `flush`."""
        if self._pending or not self._try_send(frame):
            self._pending.append(frame)

    def _try_send(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def flush(self) -> None:
        """Send what was kept, as far as it goes."""
        while self._pending and self._try_send(self._pending[0]):
            self._pending.popleft()

    @property
    def is_backpressured(self) -> bool:
        """The broker does not keep up: stop reading output until `flush` has emptied this."""
        return bool(self._pending)

    def send_final(self, frame: bytes) -> None:
        """Say this, and wait until the broker has no more use for us."""
        self._socket.sndtimeo = self._socket.rcvtimeo = _FINAL_SEND_MS
        self._socket.send(frame)
        try:
            while not self.is_disconnected():
                self._socket.recv()
        except zmq.Again:
            return

    def close(self) -> None:
        """Give everything back."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

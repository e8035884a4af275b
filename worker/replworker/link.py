"""Socket to the broker, with detection of its disconnection, and another one to the broker after it."""

from __future__ import annotations

import os
import stat
from collections import deque

import zmq

from replwire.link import LINK_VERSION, FrameKind, HelloBody, encode, pack
from replwire.paths import ipc_path

_FINAL_SEND_MS = 10_000
# Plain numbers: `&` on pyzmq's enums costs more than the call itself.
_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)


class BrokerLink:
    """A DEALER socket that never blocks; unsent frames are queued, and `is_backpressured` says so.

    A socket is connected once. `redial` makes another one; until the broker there has adopted this worker, frames are
    dropped: whoever sends them keeps what has to be sent again.
    """

    def __init__(self, endpoint: str, token: str) -> None:
        self._endpoint = endpoint
        self._token = token
        self._context = zmq.Context()
        self._pending: deque[bytes] = deque()
        self._dials = 0
        self._connect(HelloBody(token, LINK_VERSION))
        self.is_attached = True  # False: the broker does not know what this worker did meanwhile

    def _connect(self, hello: HelloBody) -> None:
        self._dials += 1
        address = f"inproc://link-{self._dials}"
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.rcvhwm = 0  # the core sends one eval at a time and a bounded number of requests
        socket.reconnect_ivl = -1  # another broker has to be told what this worker is
        socket.monitor(address, zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED)
        self._monitor = self._context.socket(zmq.PAIR)
        self._monitor.connect(address)
        self.monitor_fd: int = self._monitor.fileno()  # when readable, check `is_disconnected`
        socket.connect(self._endpoint)
        frame = pack(FrameKind.HELLO, encode(hello))
        if not self._try_send(frame):
            self._pending.append(frame)

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """Socket for libzmq's poll; when readable, call `receive`. Another one after `redial`."""
        return self._socket

    def detach(self) -> None:
        """Drop what was not sent, and all frames from now on."""
        self.is_attached = False
        self._pending.clear()

    def redial(self, session: str, epoch: int, last_eval: int, running: int) -> None:
        """Connect to the broker that is at the endpoint now, and tell it what this worker has."""
        self._close_socket()
        self._pending.clear()
        self._connect(HelloBody(self._token, LINK_VERSION, session, epoch, last_eval, running))

    def may_redial(self) -> bool:
        """Return whether the endpoint is still in a directory of this user alone: others may use its parent."""
        directory = os.path.dirname(ipc_path(self._endpoint) or "")
        try:
            found = os.lstat(directory)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077

    def attach(self) -> None:
        """Send frames again: the broker has adopted this worker."""
        self.is_attached = True

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
        """Send a frame, or queue it for `flush`; drop it while no broker has adopted this worker."""
        if self.is_attached and (self._pending or not self._try_send(frame)):
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
        self._close_socket()
        self._context.term()

    def _close_socket(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)

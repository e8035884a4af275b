"""Workers over a second ROUTER. A worker is known by the one-time token it was started with."""

from __future__ import annotations

import msgspec
import zmq

from replbroker.transports.zmq_sockets import MORE, NOBLOCK, create_router, receive_message
from replwire.link import HEADER_BYTES, FrameKind, HelloBody, unpack

_MAX_FRAME = 64 * 1024 * 1024
_decode_hello = msgspec.json.Decoder(HelloBody).decode


class WorkerRouter:
    """Numbers of workers on the inside, routing ids on the outside."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = create_router(context, _MAX_FRAME, hwm=0)
        self._tokens: dict[str, int] = {}
        self._numbers: dict[bytes, int] = {}
        self._ids: dict[int, bytes] = {}

    def expect(self, number: int, token: str) -> None:
        """A worker was started with this token."""
        self._tokens[token] = number

    def receive(self) -> tuple[int, bytes] | None:
        """The frame that waits, as (worker, frame). Who has not said hello with a token of ours is not heard."""
        sender, last, alone = receive_message(self.socket)
        frame = last.bytes if alone else b""
        number = self._numbers.get(sender)
        if number is not None:
            return number, frame
        self._identify(sender, frame)
        return None

    def _identify(self, sender: bytes, frame: bytes) -> None:
        try:
            if unpack(frame).kind != FrameKind.HELLO:
                return
            number = self._tokens.pop(_decode_hello(frame[HEADER_BYTES:]).token, None)
        except (ValueError, msgspec.MsgspecError):
            return
        if number is not None:
            self._numbers[sender] = number
            self._ids[number] = sender

    def send(self, number: int, frame: bytes) -> bool:
        """Send to a worker. False when it is not there."""
        identity = self._ids.get(number)
        if identity is None:
            return False
        try:
            self.socket.send(identity, MORE)
            self.socket.send(frame, NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def forget(self, number: int) -> None:
        """Hear no more of this worker."""
        identity = self._ids.pop(number, None)
        if identity is not None:
            del self._numbers[identity]
        for token in [token for token, expected in self._tokens.items() if expected == number]:
            del self._tokens[token]

    def close(self) -> None:
        """Close at once: workers die by this."""
        self.socket.close(0)

"""Workers over a second ROUTER socket. A worker is identified by the one-time token that it was started with."""

from __future__ import annotations

import secrets

import msgspec
import zmq

from replbroker.transports.zmq_sockets import MORE, NOBLOCK, create_router, receive_message
from replwire.link import HEADER_BYTES, FrameKind, HelloBody, unpack

_MAX_FRAME = 64 * 1024 * 1024
_decode_hello = msgspec.json.Decoder(HelloBody).decode


class WorkerRouter:
    """Frames to and from workers: numbers on the inside, routing ids on the outside."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = create_router(context, _MAX_FRAME, hwm=0)
        self._tokens: dict[str, int] = {}
        self._numbers: dict[bytes, int] = {}
        self._ids: dict[int, bytes] = {}

    def create_token(self, number: int) -> str:
        """Return a fresh token for a worker that is about to be started."""
        token = secrets.token_hex(16)
        self._tokens[token] = number
        return token

    def receive(self) -> tuple[int, bytes] | None:
        """Receive the waiting frame.

        Returns:
            Worker and frame, or None for a frame of a sender that has not shown a token.
        """
        sender, last, is_single = receive_message(self.socket)
        frame = last.bytes if is_single else b""
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
        """Send a frame; return False when the worker is not connected."""
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
        """Ignore what this worker sends from now on."""
        identity = self._ids.pop(number, None)
        if identity is not None:
            del self._numbers[identity]
        for token in [token for token, expected in self._tokens.items() if expected == number]:
            del self._tokens[token]

    def close(self) -> None:
        """Close the socket at once, which ends the workers."""
        self.socket.close(0)

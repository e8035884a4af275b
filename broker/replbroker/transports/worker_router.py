"""Workers over a second ROUTER socket. A worker is identified by the token that it was started with."""

from __future__ import annotations

import hashlib
import secrets

import msgspec
import zmq

from replbroker.transports.zmq_sockets import MORE, NOBLOCK, create_router, receive_message
from replwire.link import HEADER_BYTES, FrameKind, HelloBody, unpack

_MAX_FRAME = 64 * 1024 * 1024
_decode_hello = msgspec.json.Decoder(HelloBody).decode


def digest_of(token: str) -> str:
    """Return the digest of a worker's token. A token is random, so a plain hash says nothing of it."""
    return hashlib.sha256(token.encode()).hexdigest()


class WorkerRouter:
    """Frames to and from workers: numbers on the inside, routing ids on the outside.

    Tokens are known by their digests: whoever reads the list of sessions cannot speak as a worker.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket = create_router(context, _MAX_FRAME, hwm=0)
        self._expected: dict[str, int] = {}  # workers by the digests of their tokens
        self._digests: dict[int, str] = {}
        self._numbers: dict[bytes, int] = {}
        self._ids: dict[int, bytes] = {}

    def create_token(self, number: int) -> str:
        """Return a fresh token for a worker that is about to be started."""
        token = secrets.token_hex(16)
        self.expect(number, digest_of(token))
        return token

    def expect(self, number: int, digest: str) -> None:
        """Accept the worker whose token has this digest."""
        self._expected[digest] = number
        self._digests[number] = digest

    def token_digest(self, number: int) -> str | None:
        """Return the digest of a worker's token, for a later broker, or None for a worker that was killed."""
        return self._digests.get(number)

    def receive(self) -> tuple[int, bytes] | None:
        """Receive the waiting frame.

        Returns:
            Worker and frame, or None for a frame of a sender that has not shown a token.
        """
        sender, last, is_single = receive_message(self.socket)
        frame = last.bytes if is_single else b""
        number = self._numbers.get(sender)
        if number is None:
            number = self._identify(sender, frame)
        return None if number is None else (number, frame)

    def _identify(self, sender: bytes, frame: bytes) -> int | None:
        """Return the worker that connects, if the frame shows its token. A connection replaces an earlier one."""
        try:
            if unpack(frame).kind != FrameKind.HELLO:
                return None
            number = self._expected.get(digest_of(_decode_hello(frame[HEADER_BYTES:]).token))
        except (ValueError, msgspec.MsgspecError):
            return None
        if number is not None:
            if (earlier := self._ids.get(number)) is not None:
                del self._numbers[earlier]
            self._numbers[sender] = number
            self._ids[number] = sender
        return number

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
        digest = self._digests.pop(number, None)
        if digest is not None:
            del self._expected[digest]

    def close(self) -> None:
        """Close the socket at once, which ends workers that do not wait for another broker."""
        self.socket.close(0)

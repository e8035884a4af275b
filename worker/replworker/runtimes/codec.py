"""How the frames of the control channel look as bytes: one codec for each way that a runtime can speak.

Outside it is always the JSON of `frames.py`; inside it is what the interpreter can read and write.
"""

from __future__ import annotations

import struct
from typing import Protocol

MAX_FRAME_BYTES = 8 * 1024 * 1024


class ProtocolError(Exception):
    """The interpreter's side of the control channel said something it may not."""


class Codec(Protocol):
    """One for each interpreter: it may keep what it has heard so far."""

    def encode(self, body: bytes) -> bytes:
        """The bytes to send for one frame; b"" when they have to wait for what `decode` will hear."""

    def decode(self, data: bytes) -> tuple[list[bytes], bytes]:
        """The frames that these bytes complete, and bytes to send back. Raises ProtocolError."""


class JsonFrames:
    """Four bytes of length, big-endian, then JSON."""

    def __init__(self) -> None:
        self._received = bytearray()

    def encode(self, body: bytes) -> bytes:
        return struct.pack("!I", len(body)) + body

    def decode(self, data: bytes) -> tuple[list[bytes], bytes]:
        self._received += data
        frames = []
        received = self._received
        while len(received) >= 4:
            length = int.from_bytes(received[:4], "big")
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"a control frame of {length} bytes")
            if len(received) < 4 + length:
                break
            frames.append(bytes(received[4 : 4 + length]))
            del received[: 4 + length]
        return frames, b""

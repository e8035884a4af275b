"""Codecs for the control channel: one for each encoding that a runtime uses.

The worker's side is always the JSON of `frames.py`; the interpreter's side is what it can read and write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

MAX_FRAME_BYTES = 8 * 1024 * 1024


class ProtocolError(Exception):
    """The interpreter violated the protocol of the control channel."""


class Codec(Protocol):
    """Codec of one interpreter; it may keep state."""

    def encode(self, body: bytes) -> bytes:
        """Encode a frame; b"" if it has to wait for input to `decode`."""

    def decode(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the frames completed by these bytes, and bytes to send back.

        Raises:
            ProtocolError: the bytes are malformed
        """


class JsonFrames:
    """Four bytes of length, big-endian, followed by JSON."""

    def __init__(self, _: Callable[[], bytes] = bytes) -> None:
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

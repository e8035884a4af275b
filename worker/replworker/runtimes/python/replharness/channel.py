"""Frames to and from the worker: four bytes of length, big-endian, then a JSON object in UTF-8."""

from __future__ import annotations

import os
import select
from _thread import allocate_lock

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Tuple

__builtins__ = SEALED

FRAME_BYTES = 8 << 20
_READ_BYTES = 1 << 16
_SMALL_BYTES = 256
_PIECE_BYTES = 1 << 20


class ChannelClosed(Exception):
    """The worker is gone, or this process is a fork without a channel."""


class ChannelBroken(Exception):
    """The received data is not a valid frame."""


class Channel:
    """Channel to the worker. Only the main thread reads; every thread may send."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._rest = b""
        self._lock = allocate_lock()
        # Bound here, because user code may replace these names.
        self._read: Callable[[int, int], bytes] = os.read
        self._write: Callable[[int, Any], int] = os.write
        self._encode, self._decode = _codec()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def receive(self) -> Dict[str, Any]:
        """Return the next object.

        Raises:
            ChannelClosed: end of the stream
            ChannelBroken: the data is not a frame
        """
        data = self._rest
        while len(data) < 4:
            data += self._more(_READ_BYTES)
        size = int.from_bytes(data[:4], "big")
        if size > FRAME_BYTES:
            raise ChannelBroken("a frame of %d bytes" % size)
        end = 4 + size
        if len(data) < end:
            data = self._whole(data, end)
        self._rest = data[end:]
        return self._parsed(data[4:end])

    def interrupted(self, number: int) -> bool:
        """Return whether the worker has requested an interrupt of this eval; never waits.

        A SIGINT that arrives before the eval has begun does not say which eval it is for; this frame does.
        """
        if not self._rest and self._poll.poll(0):
            self._rest = self._more(_READ_BYTES)
        while self._rest:
            end = 4 + int.from_bytes(self._rest[:4], "big")
            if not 4 < end <= min(_SMALL_BYTES, len(self._rest)):
                return False
            message = self._parsed(self._rest[4:end])
            if message.get("op") != "interrupt":
                return False
            self._rest = self._rest[end:]
            if message.get("n") == number:
                return True
        return False

    def send(self, message: Dict[str, Any]) -> None:
        """Write one object as a whole.

        Raises:
            ChannelClosed: the worker is gone
        """
        body = self._encode(message)
        data = len(body).to_bytes(4, "big") + body
        with self._lock:
            try:
                sent = self._write(self._fd, data)
                while sent < len(data):
                    sent += self._write(self._fd, memoryview(data)[sent : sent + _PIECE_BYTES])
            except OSError as exc:
                raise ChannelClosed() from exc

    def warm(self, message: Dict[str, Any]) -> None:
        """Encode and decode an object as for sending and receiving."""
        self._parsed(self._encode(message))

    def forget(self) -> None:
        """Close the channel in a forked child, so that it can neither write it nor keep it open."""
        fd, self._fd, self._rest = self._fd, -1, b""
        self._lock = allocate_lock()  # another thread may have held the old one at the fork
        try:
            os.close(fd)
        except OSError:
            pass

    def revive(self, fd: int) -> None:
        """Begin anew on another descriptor, in an interpreter started from a copy."""
        self._fd, self._rest = fd, b""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def _parsed(self, body: bytes) -> Dict[str, Any]:
        try:
            message = self._decode(body.decode("utf-8"))
        except Exception as exc:
            raise ChannelBroken("not JSON") from exc
        if type(message) is not dict:
            raise ChannelBroken("not an object")
        return message

    def _more(self, size: int) -> bytes:
        try:
            data = self._read(self._fd, size)
        except OSError as exc:
            raise ChannelClosed() from exc
        if not data:
            raise ChannelClosed()
        return data

    def _whole(self, data: bytes, end: int) -> bytes:
        parts, have = [data], len(data)
        while have < end:
            piece = self._more(min(end - have, _PIECE_BYTES))
            parts.append(piece)
            have += len(piece)
        return b"".join(parts)


class _Scan:
    """Settings of the C scanner, as in json.JSONDecoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _codec() -> Tuple[Callable[[Any], bytes], Callable[[str], Any]]:
    # The json package costs a megabyte and some milliseconds (it imports re); this is all that is needed of it.
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner

        make: Any = make_encoder
        chunks = make(None, None, encode_basestring_ascii, None, ":", ",", False, False, False)
        scan = make_scanner(_Scan())  # type: ignore[arg-type]
        join = "".join
        join(chunks({"probe": [1, None, True, "text"]}, 0))
    except (ImportError, TypeError, AttributeError):  # missing or different in this implementation
        import json

        dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
        return (lambda message: dumps(message).encode("ascii")), json.JSONDecoder().decode

    def encode(message: Any) -> bytes:
        return join(chunks(message, 0)).encode("ascii")

    def decode(text: str) -> Any:
        value, end = scan(text, 0)
        if end != len(text):
            raise ValueError("text after the object")
        return value

    return encode, decode

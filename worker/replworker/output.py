"""Output of an eval, bounded when captured.

The first `max-output-bytes` of each stream are kept and sent live. Of the rest, the last `output-tail-bytes` are kept
for `read`, and all is counted. Offsets count every byte of both streams in order of arrival, kept or not, so a reader
can page and knows what is missing.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import Literal, NamedTuple

from replwire.replies import TRUNCATED

Stream = Literal["out", "err"]
STREAMS: tuple[Stream, ...] = ("out", "err")
_MERGE_BYTES = 4096  # adjacent chunks of a stream below this size are merged


class OutputPiece(NamedTuple):
    """A part of the log as text."""

    stream: Stream
    text: str


class OutputPage(NamedTuple):
    """Result of a read. `offset` is where the next read continues, `missing` counts bytes that were dropped."""

    pieces: list[OutputPiece]
    offset: int
    missing: int
    more: bool


class _LoggedChunk:
    __slots__ = ("data", "start", "stream")

    def __init__(self, start: int, stream: Stream, data: bytes) -> None:
        self.start = start
        self.stream = stream
        self.data = bytearray(data)

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class _StreamState:
    """State of one stream in the log."""

    __slots__ = ("cut", "decoder", "dropped", "head", "tail", "tail_bytes")

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self.head = 0
        self.cut = False
        self.dropped = 0  # bytes not sent live
        self.tail: deque[_LoggedChunk] = deque()
        self.tail_bytes = 0


class OutputLog:
    """Output log of one eval."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_limit = head_bytes
        self._tail_limit = tail_bytes
        self._chunks: list[_LoggedChunk] = []
        self._streams: dict[Stream, _StreamState] = {"out": _StreamState(), "err": _StreamState()}
        self.total = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory."""
        return sum(side.head + side.tail_bytes for side in self._streams.values())

    def dropped(self, stream: str = "both") -> int:
        """Return the bytes of a stream, or of "both", that were not sent live."""
        return sum(side.dropped for name, side in self._streams.items() if stream in ("both", name))

    def add(self, stream: Stream, data: bytes) -> str:
        """Capture bytes and return the text to send live, or ""."""
        side = self._streams[stream]
        room = self._head_limit - side.head
        if len(data) <= room:
            self._append(side, stream, data)
            return side.decoder.decode(data)
        text = ""
        if room:
            self._append(side, stream, data[:room])
            text = side.decoder.decode(data[:room])
        if not side.cut:
            side.cut = True
            side.decoder.reset()  # an incomplete character at the cut is dropped
            text += TRUNCATED
        self._overflow(side, stream, data[room:])
        return text

    def finish(self) -> list[OutputPiece]:
        """Return text held back because its last character was incomplete, at the end of the eval."""
        rest = [OutputPiece(stream, side.decoder.decode(b"", True)) for stream, side in self._streams.items()]
        return [piece for piece in rest if piece.text]

    def _append(self, side: _StreamState, stream: Stream, data: bytes) -> None:
        last = self._chunks[-1] if self._chunks else None
        if last is not None and last.stream == stream and last.end == self.total and len(last.data) < _MERGE_BYTES:
            last.data += data
        else:
            self._chunks.append(_LoggedChunk(self.total, stream, data))
        side.head += len(data)
        self.total += len(data)

    def _overflow(self, side: _StreamState, stream: Stream, data: bytes) -> None:
        side.dropped += len(data)
        keep = data[-self._tail_limit :] if self._tail_limit else b""
        if keep:
            start = self.total + len(data) - len(keep)
            last = side.tail[-1] if side.tail else None
            if last is not None and last.end == start and len(last.data) < min(_MERGE_BYTES, self._tail_limit // 16):
                last.data += keep
            else:
                side.tail.append(_LoggedChunk(start, stream, keep))
            side.tail_bytes += len(keep)
            while side.tail_bytes - len(side.tail[0].data) >= self._tail_limit:
                side.tail_bytes -= len(side.tail.popleft().data)
        self.total += len(data)

    def page(self, offset: int, stream: str, max_bytes: int, max_pieces: int) -> OutputPage:
        """Return text from an offset, of one stream or "both", at most `max_bytes` in `max_pieces`."""
        tails = [chunk for side in self._streams.values() for chunk in side.tail]
        chunks = self._chunks + sorted(tails, key=lambda chunk: chunk.start)
        decoders = {name: codecs.getincrementaldecoder("utf-8")("backslashreplace") for name in self._streams}
        pieces: list[OutputPiece] = []
        at, missing = offset, 0
        for chunk in chunks:
            if chunk.end <= at:
                continue
            start = max(chunk.start, at)
            if stream not in ("both", chunk.stream):
                at = chunk.end
                continue
            missing += start - at
            data = chunk.data[start - chunk.start :][:max_bytes]
            max_bytes -= len(data)
            at = start + len(data)
            pieces.append(OutputPiece(chunk.stream, decoders[chunk.stream].decode(data)))
            if max_bytes <= 0 or len(pieces) >= max_pieces:
                return OutputPage(pieces, at, missing, more=at < self.total)
        pieces += [OutputPiece(name, rest) for name, decoder in decoders.items() if (rest := decoder.decode(b"", True))]
        return OutputPage(pieces, max(offset, self.total), missing + max(0, self.total - at), more=False)

    def end(self, stream: Stream, size: int) -> str:
        """Return the last `size` bytes of a stream that were kept."""
        kept = [*(chunk for chunk in self._chunks if chunk.stream == stream), *self._streams[stream].tail]
        data = b""
        while kept and len(data) < size:
            data = bytes(kept.pop().data) + data
        return data[-size:].decode("utf-8", "backslashreplace")


class BackgroundOutput:
    """Background output, printed while no eval runs: the newest bytes and the total."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.total = 0
        self.unread = 0

    def add(self, data: bytes) -> None:
        """Capture bytes."""
        self.total += len(data)
        self.unread += len(data)
        self._data += data
        if len(self._data) > 2 * self._limit:
            del self._data[: len(self._data) - self._limit]

    def page(self, offset: int, max_bytes: int) -> OutputPage:
        """Return text from an offset."""
        kept = bytes(self._data[-self._limit :]) if self._limit else b""
        start = max(offset, self.total - len(kept))
        data = kept[start - (self.total - len(kept)) :][:max_bytes]
        at = start + len(data)
        self.unread = 0
        text = data.decode("utf-8", "backslashreplace")
        return OutputPage([OutputPiece("out", text)] if text else [], at, max(0, start - offset), more=at < self.total)

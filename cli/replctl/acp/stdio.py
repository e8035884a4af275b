"""The two ends of the wire, without threads and without changing the descriptors' modes, which others may share."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Iterator

MAX_LINE = 16 * 1024 * 1024  # bytes of one message from the client; the broker's own bound for code is far below
MAX_UNREAD = 32 * 1024 * 1024  # bytes that a client leaves unread before it is given up
HIGH_WATER = 256 * 1024  # bytes unread above which live output and replays wait
_READ = 256 * 1024
_PAUSE = 0.005  # between two looks at a client that has to take the last messages
_PIECE = select.PIPE_BUF  # a writable pipe takes this much without blocking (pipe(7))


def take_stdio() -> tuple[int, int]:
    """Private descriptors for the wire. From here on fd 0 is empty and fd 1 is stderr.

    What anything else in this process or a child prints can then never stand between two messages.
    """
    source, sink = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return source, sink


class LineSplitter:
    """Bytes to lines. A line over the bound is dropped up to its newline, told of once, and the next one is read."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._buffered_bytes = 0
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Whole lines that are not blank, and None for each that was too long."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            yield from self._add(piece)
            line, too_long = b"".join(self._parts), self._skipping
            self._parts, self._buffered_bytes, self._skipping = [], 0, False
            if not too_long and line.strip():
                yield line
        yield from self._add(rest)

    def end(self) -> Iterator[bytes]:
        """The last line, when the stream ended without a newline."""
        line = b"".join(self._parts)
        if line.strip() and not self._skipping:
            yield line

    def _add(self, piece: bytes) -> Iterator[None]:
        if self._skipping or not piece:
            return
        self._parts.append(piece)
        self._buffered_bytes += len(piece)
        if self._buffered_bytes > self._limit:
            self._parts, self._buffered_bytes, self._skipping = [], 0, True
            yield None


class StdinReader:
    """Hands on what arrives at a descriptor, until its end: `ended` gets None, or the error that ended it."""

    def __init__(self, source: int, hear: Callable[[bytes | None], None], ended: Callable[[OSError | None], None]):
        self._source, self._on_line, self._on_end = source, hear, ended
        self._splitter = LineSplitter()
        self._loop = asyncio.get_running_loop()
        self._polled, self._is_stopped = True, False
        try:
            self._loop.add_reader(source, self._read)
        except PermissionError:  # a plain file or /dev/null: never blocks, and epoll will not have it
            self._polled = False
            self._loop.call_soon(self._read)

    def stop(self) -> None:
        """Read no more."""
        self._is_stopped = True
        if self._polled:
            self._loop.remove_reader(self._source)

    def _read(self) -> None:
        if self._is_stopped:
            return
        try:
            data = os.read(self._source, _READ)
        except OSError as error:
            self.stop()
            self._on_end(error)
            return
        for line in self._splitter.feed(data):
            self._on_line(line)
        if not data:
            for line in self._splitter.end():
                self._on_line(line)
            self.stop()
            self._on_end(None)
        elif not self._polled:
            self._loop.call_soon(self._read)


class StdoutWriter:
    """The only one that writes to the client. Whole lines in the order they were given; never blocks the loop."""

    def __init__(self, sink: int, broken: Callable[[str], None]) -> None:
        self._sink, self._on_broken = sink, broken
        self._loop = asyncio.get_running_loop()
        self._poll = select.poll()
        self._poll.register(sink, select.POLLOUT)
        self._unsent = bytearray()
        self._scheduled = self._watching = False
        self.closed = False
        self._has_room = asyncio.Event()
        self._has_room.set()

    @property
    def backlog(self) -> int:
        """Bytes that the client has not taken yet."""
        return len(self._unsent)

    def send(self, line: bytes) -> None:
        """Give a line on. Lines of one turn of the loop leave together."""
        if self.closed:
            return
        self._unsent += line
        if len(self._unsent) > HIGH_WATER:
            self._has_room.clear()
        if len(self._unsent) > MAX_UNREAD:
            self._close(f"the client does not read: {len(self._unsent)} bytes wait")
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def drain(self) -> None:
        """Wait until the client has taken most of it, or is gone."""
        await self._has_room.wait()

    async def wait_flushed(self) -> None:
        """Wait until the client has taken all of it, or is gone."""
        await asyncio.sleep(0)
        while self._unsent:
            self._flush()
            await asyncio.sleep(_PAUSE)

    def _flush(self) -> None:
        """Write what can be written at once; the rest when the descriptor is ready again."""
        self._scheduled = False
        sent = 0
        view = memoryview(self._unsent)
        try:
            while sent < len(view) and self._poll.poll(0):
                sent += os.write(self._sink, view[sent : sent + _PIECE])
        except OSError as error:
            view.release()
            self._close(f"cannot write to the client: {error.strerror}")
            return
        view.release()
        del self._unsent[:sent]
        if len(self._unsent) <= HIGH_WATER:
            self._has_room.set()
        self._set_watching(bool(self._unsent))

    def _set_watching(self, wanted: bool) -> None:
        if wanted and not self._watching:
            self._loop.add_writer(self._sink, self._flush)
        elif self._watching and not wanted:
            self._loop.remove_writer(self._sink)
        self._watching = wanted

    def _close(self, why: str) -> None:
        self.closed = True
        self._unsent.clear()
        self._set_watching(False)
        self._has_room.set()
        self._on_broken(why)

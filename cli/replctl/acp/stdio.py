"""Transport over stdin and stdout, without threads and without changing the descriptors' shared modes."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Iterator

MAX_LINE = 16 * 1024 * 1024  # bytes of one message; the broker's limit for code is far lower
MAX_UNREAD = 32 * 1024 * 1024  # unread bytes before the client is abandoned
HIGH_WATER = 256 * 1024  # unread bytes above which live output and replays wait
_READ = 256 * 1024
_PAUSE = 0.005  # polling interval while the client reads the last messages
_PIECE = select.PIPE_BUF  # a writable pipe takes this much without blocking (pipe(7))


def take_stdio() -> tuple[int, int]:
    """Move the protocol to private descriptors. Afterwards fd 0 is empty and fd 1 is stderr.

    Anything else that this process or a child prints can then never end up between two messages.
    """
    source, sink = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return source, sink


class LineSplitter:
    """Splits bytes into lines. A line over the limit is dropped up to its newline and reported once."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._buffered_bytes = 0
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Yield complete lines that are not blank, and None for each line that was too long."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            yield from self._add(piece)
            line, too_long = b"".join(self._parts), self._skipping
            self._parts, self._buffered_bytes, self._skipping = [], 0, False
            if not too_long and line.strip():
                yield line
        yield from self._add(rest)

    def end(self) -> Iterator[bytes]:
        """Yield the last line if the stream ended without a newline."""
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
    """Reads lines from a descriptor until its end; `on_end` receives None, or the error that ended it."""

    def __init__(self, source: int, on_line: Callable[[bytes | None], None], on_end: Callable[[OSError | None], None]):
        self._source, self._on_line, self._on_end = source, on_line, on_end
        self._splitter = LineSplitter()
        self._loop = asyncio.get_running_loop()
        self._polled, self._is_stopped = True, False
        try:
            self._loop.add_reader(source, self._read)
        except PermissionError:  # a plain file or /dev/null: never blocks, and epoll rejects it
            self._polled = False
            self._loop.call_soon(self._read)

    def stop(self) -> None:
        """Stop reading."""
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
    """The only writer to the client: whole lines in order, never blocking the event loop."""

    def __init__(self, sink: int, on_broken: Callable[[str], None]) -> None:
        self._sink, self._on_broken = sink, on_broken
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
        """Bytes that the client has not read yet."""
        return len(self._unsent)

    def send(self, line: bytes) -> None:
        """Queue a line. Lines queued in one iteration of the event loop are written together."""
        if self.closed:
            return
        self._unsent += line
        if len(self._unsent) > HIGH_WATER:
            self._has_room.clear()
        if len(self._unsent) > MAX_UNREAD:
            self._close(f"the client is not reading: {len(self._unsent)} bytes pending")
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def drain(self) -> None:
        """Wait until the client has read most of the backlog, or is gone."""
        await self._has_room.wait()

    async def wait_flushed(self) -> None:
        """Wait until the client has read the whole backlog, or is gone."""
        await asyncio.sleep(0)
        while self._unsent:
            self._flush()
            await asyncio.sleep(_PAUSE)

    def _flush(self) -> None:
        """Write as much as possible without blocking; the rest when the descriptor is writable again."""
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

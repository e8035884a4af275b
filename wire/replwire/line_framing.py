"""Bounded newline framing without I/O."""

from __future__ import annotations

import re

_blank_lines = re.compile(rb"(?:[ \t\r\v\f]*\n)*").match


class LineFramer:
    """Splits a byte stream at newlines, one line at a time.

    Lines are cut on demand, so a large burst costs nothing until it is read. A line over the limit is returned
    truncated to one byte more than the limit and ends the stream.
    """

    __slots__ = ("_data", "_max", "_searched", "_start", "overrun")

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._data = bytearray()
        self._start = 0  # of the next line
        self._searched = 0  # no newline before this
        self.overrun = False

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        if not self.overrun:
            self._data += data

    def next_line(self) -> bytes | None:
        """Return the next line without its newline, skipping blank lines; None if no line is complete."""
        data = self._data
        if self._searched == self._start and (blank := _blank_lines(data, self._start)) is not None:
            self._start = self._searched = blank.end()
        end = data.find(b"\n", self._searched)
        length = (len(data) if end < 0 else end) - self._start
        if length > self._max:
            return self._cut_line()
        if end < 0:
            del data[: self._start]
            self._start, self._searched = 0, len(data)
            return None
        line = bytes(memoryview(data)[self._start : end])
        self._start = self._searched = end + 1
        return line

    def feed(self, data: bytes) -> list[bytes]:
        """Append received bytes and return all complete lines."""
        self.add(data)
        lines = []
        while (line := self.next_line()) is not None:
            lines.append(line)
        return lines

    def drop(self) -> None:
        """Discard everything received and ignore further input."""
        self.overrun = True
        self._data.clear()
        self._start = self._searched = 0

    def _cut_line(self) -> bytes:
        line = bytes(memoryview(self._data)[self._start : self._start + self._max + 1])
        self.drop()
        return line

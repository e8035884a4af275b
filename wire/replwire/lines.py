"""Bytes in, lines out: newline framing with a bound, and no I/O."""

from __future__ import annotations


class Lines:
    """Cuts a stream at newlines. A line over the bound is handed out cut, one byte too long, and ends the stream."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._rest = bytearray()
        self.overrun = False

    def feed(self, data: bytes) -> list[bytes]:
        """Whole lines, without their newline; blank ones are left out. Holds at most one line within the bound."""
        if self.overrun:
            return []
        if b"\n" not in data:  # a line that comes byte by byte is not to be copied at each of them
            self._rest += data
            return [self._over(bytes(self._rest))] if len(self._rest) > self._max else []
        lines: list[bytes] = []
        *whole, rest = (bytes(self._rest) + data).split(b"\n")
        for line in whole:
            if len(line) > self._max:
                return [*lines, self._over(line)]
            if line.strip():
                lines.append(line)
        if len(rest) > self._max:
            return [*lines, self._over(rest)]
        self._rest = bytearray(rest)
        return lines

    def _over(self, line: bytes) -> bytes:
        self.overrun = True
        self._rest.clear()
        return line[: self._max + 1]

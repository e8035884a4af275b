"""Session output as bounded screen lines without control sequences. No I/O."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from replctl.top.cell_text import Line, fold
from replctl.top.terminal_sequences import SequenceParser
from replwire.terminal import escape_control

MAX_LINES = 2000  # of one session
MAX_CHARS = 200_000  # of one session
_LINE_CHARS = 4000  # longer lines continue in the next
_TAB = 8

_PIECE = re.compile(r"[\n\r\b\t]|[\x1b\x80-\x9f]|[^\n\r\b\t\x1b\x80-\x9f]+")
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_ATTRIBUTES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "reverse"}
_ATTRIBUTE_ENDS = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("reverse",)}


class _PendingText(NamedTuple):
    text: str
    stream: str | None  # None: a line of replctl's own; without text, the end of the open line
    style: str


class Scrollback:
    """The last lines of one session's output; the oldest are dropped first.

    New output is only queued, bounded, and split into lines when shown: most output is never looked at.
    """

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._chars = 0
        self._open: Line = []
        self._column = 0  # position of the next character in the open line
        self._parsers: dict[str, SequenceParser] = {}  # by stream
        self._colour = ""
        self._attributes: set[str] = set()
        self._pending: deque[_PendingText] = deque()
        self._pending_chars = 0
        self.dropped_lines = 0  # lines dropped so far

    def text(self, text: str, stream: str = "out", style: str = "") -> None:
        """Add output of the code; colours are kept, other sequences removed."""
        self._enqueue(_PendingText(text, stream, style))

    def note(self, text: str, style: str) -> None:
        """Add a line of replctl's own, on a fresh line."""
        self._enqueue(_PendingText(escape_control(text) or " ", None, style))

    def reset_line(self) -> None:
        """End the open line and its colours."""
        self._enqueue(_PendingText("", None, ""))

    def __bool__(self) -> bool:
        return bool(self._pending or self._lines or self._open)

    def __len__(self) -> int:
        self._process_pending()
        return len(self._lines) + bool(self._open)

    def backwards(self, width: int) -> Iterator[Line]:
        """Yield lines from last to first, each folded to `width` cells."""
        self._process_pending()
        if self._open:
            yield from reversed(fold(self._open, width))
        for line in reversed(self._lines):
            yield from reversed(fold(line, width))

    # --- what waits ---

    def _enqueue(self, one: _PendingText) -> None:
        self._pending.append(one)
        self._pending_chars += 1 + len(one.text)
        while self._pending_chars > MAX_CHARS and len(self._pending) > 1:
            oldest = self._pending.popleft()
            self._pending_chars -= 1 + len(oldest.text)
            self.dropped_lines += oldest.text.count("\n")

    def _process_pending(self) -> None:
        while self._pending:
            text, stream, style = self._pending.popleft()
            if stream is None:
                self._end_eval()
                if text:
                    self._close([(text, style)])
                continue
            for part in self._parsers.setdefault(stream, SequenceParser()).parse(text):
                if part.final is None:
                    self._add_text(part.text, style)
                else:
                    self._apply_sequence(part.final, part.arguments)
        self._pending_chars = 0

    def _end_eval(self) -> None:
        if self._open:
            self._end_line()
        self._colour, self._column = "", 0
        self._attributes.clear()
        self._parsers.clear()

    # --- text ---

    def _add_text(self, text: str, style: str) -> None:
        for piece in _PIECE.findall(text):
            if piece == "\n":
                self._end_line()
            elif piece == "\r":
                self._column = 0
            elif piece == "\b":
                self._column = max(0, self._column - 1)
            elif piece == "\t":
                self._put(" " * (_TAB - self._column % _TAB), style)
            else:
                self._put(escape_control(piece), style)

    def _put(self, text: str, style: str) -> None:
        style = " ".join(filter(None, (self._colour or style, *sorted(self._attributes))))
        while text:
            room = _LINE_CHARS - self._column
            if room <= 0:
                self._end_line()
                continue
            part, text = text[:room], text[room:]
            length = sum(len(each) for each, _ in self._open)
            if self._column < length:
                self._open = [
                    *_cut(self._open, 0, self._column),
                    (part, style),
                    *_cut(self._open, self._column + len(part), length),
                ]
            elif self._open and self._open[-1][1] == style:
                self._open[-1] = (self._open[-1][0] + part, style)
            else:
                self._open.append((part, style))
            self._column += len(part)

    def _end_line(self) -> None:
        line, self._open, self._column = self._open, [], 0
        self._close(line)

    def _close(self, line: Line) -> None:
        self._lines.append(line)
        self._chars += _size(line)
        while len(self._lines) > MAX_LINES or self._chars > MAX_CHARS:
            self._chars -= _size(self._lines.popleft())
            self.dropped_lines += 1

    # --- sequences ---

    def _apply_sequence(self, final: str, arguments: str) -> None:
        numbers = [int(each) if each.isdecimal() and len(each) < 6 else 0 for each in arguments.split(";")][:32]
        if final == "m":
            self._paint(numbers)
        elif final == "K":
            length = sum(len(each) for each, _ in self._open)
            keep = {0: (0, self._column), 1: (self._column, length), 2: (0, 0)}.get(numbers[0], (0, length))
            kept = _cut(self._open, *keep)
            self._open = [(" " * self._column, ""), *kept] if numbers[0] == 1 else kept
            self._column = min(self._column, sum(len(each) for each, _ in self._open))

    def _paint(self, numbers: list[int]) -> None:
        rest = iter(numbers)
        for number in rest:
            if number == 0:
                self._colour = ""
                self._attributes.clear()
            elif number in _ATTRIBUTES:
                self._attributes.add(_ATTRIBUTES[number])
            elif number in _ATTRIBUTE_ENDS:
                self._attributes.difference_update(_ATTRIBUTE_ENDS[number])
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self._colour = ("bright_" if number >= 90 else "") + _COLOURS[number % 10]
            elif number == 39:
                self._colour = ""
            elif number in (38, 48):  # 256 colours and more are ignored
                for _ in range({5: 1, 2: 3}.get(next(rest, 0), 0)):
                    next(rest, 0)


def _size(line: Line) -> int:
    return 1 + sum(len(text) for text, _ in line)


def _cut(line: Line, begin: int, end: int) -> Line:
    """Return the characters from `begin` to `end` of a line."""
    found, at = [], 0
    for text, style in line:
        if part := text[max(0, begin - at) : max(0, end - at)]:
            found.append((part, style))
        at += len(text)
    return found

"""Text in terminal cells: width, truncation, folding, alignment. No I/O."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from replwire.terminal import escape_control

Line = list[tuple[str, str]]  # pieces of text, each with a style: `bold red`, or `` for the terminal's own
GAP = 1


def one_line(text: str) -> str:
    """Return the text on one line."""
    return escape_control(" ".join(text.split()))


def width_of(text: str) -> int:
    """Return the width in cells."""
    return len(text) if text.isascii() else sum(map(_cell, text))


def _cell(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Truncate to `width` cells; truncated text ends in `…`."""
    if width_of(text) <= width:
        return text
    kept, room = "", width - 1
    for char in text:
        room -= _cell(char)
        if room < 0:
            break
        kept += char
    return kept + "…" if width > 0 else ""


def pad(text: str, width: int, right: bool = False) -> str:
    """Truncate or pad to exactly `width` cells."""
    text = cut(text, width)
    blank = " " * (width - width_of(text))
    return blank + text if right else text + blank


def fold(line: Line, width: int) -> list[Line]:
    """Fold a line into lines of at most `width` cells."""
    folded: list[Line] = [[]]
    room = width
    for text, style in line:
        while text:
            part = text[:room] if text.isascii() else _fitting_prefix(text, room)
            if part:
                folded[-1].append((part, style))
                room -= width_of(part)
                text = text[len(part) :]
            if text:
                if not part and room == width:  # narrower than one character
                    return folded
                folded.append([])
                room = width
    return folded


def _fitting_prefix(text: str, room: int) -> str:
    for at, char in enumerate(text):
        room -= _cell(char)
        if room < 0:
            return text[:at]
    return text


class Column(NamedTuple):
    """A table column. Columns with the highest `rank` are dropped first if there is not enough room."""

    head: str
    width: int
    right: bool = False
    most: int = 0  # maximum width
    rank: int = 0


class TableRow(NamedTuple):
    """A table row: its key, and its cells, each with a style."""

    key: str
    cells: Sequence[tuple[str, str]]


def table(columns: Sequence[Column], rows: Sequence[TableRow], width: int) -> list[Line]:
    """Return header and rows, aligned, each at most `width` cells wide."""
    kept = _fitting_columns(columns, width)
    widths = {at: columns[at].width for at in kept}
    spare = width - sum(widths.values()) - GAP * (len(kept) - 1)
    for at in kept:
        need = max((width_of(row.cells[at][0]) for row in rows), default=0)
        more = max(0, min(spare, min(need, columns[at].most) - widths[at]))
        widths[at] += more
        spare -= more
    head = [(columns[at].head, "bold") for at in range(len(columns))]
    lines = []
    for cells in (head, *(row.cells for row in rows)):
        line: Line = []
        for at in kept:
            text, style = cells[at]
            line.append((pad(text, widths[at], columns[at].right), style))
            line.append((" " * GAP, ""))
        lines.append(line[:-1])
    return lines


def _fitting_columns(columns: Sequence[Column], width: int) -> list[int]:
    kept = list(range(len(columns)))
    while len(kept) > 1 and sum(columns[at].width + GAP for at in kept) - GAP > width:
        kept.remove(max(kept, key=lambda at: (columns[at].rank, at)))
    return kept


def plain_text(line: Line) -> str:
    """Return the line without styles."""
    return "".join(text for text, _ in line).rstrip()

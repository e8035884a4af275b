"""Text for a model: cleaned and shortened, with omissions counted. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from replwire.quantities import count_of

# Terminal control sequences (ECMA-48): CSI, OSC and other strings, two-character escapes.
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SMALLEST_LINE = 40  # characters; shorter lines would be unreadable


class CleanText(NamedTuple):
    """Text without terminal control sequences, and the number of progress bar updates removed."""

    text: str
    folded: int


class FoldedText(NamedTuple):
    """Text within a budget.

    Attributes:
        text: The shortened text.
        kept_chars: Characters of the original in it.
        cut_chars: Characters of the original left out.
        intact_head: Characters at the start of which nothing is missing.
    """

    text: str
    kept_chars: int
    cut_chars: int
    intact_head: int


def clean(text: str) -> CleanText:
    """Return the text as a screen would finally show it: no escapes, overwritten lines in their last version."""
    folded = 0
    if "\x1b" in text or "\x9b" in text:
        text = _ESCAPE.sub("", text)
    if "\r" in text:
        lines = re.sub(r"\r+\n", "\n", text).split("\n")
        for number, line in enumerate(lines):
            if "\r" in line:
                drawn = [part for part in line.split("\r") if part]
                folded += max(0, len(drawn) - 1)
                lines[number] = drawn[-1] if drawn else ""
        text = "\n".join(lines)
    if "\b" in text:
        text = _apply_backspaces(text)
    return CleanText(_CONTROL.sub("", text), folded)


def _apply_backspaces(text: str) -> str:
    kept: list[str] = []
    for character in text:
        if character != "\b":
            kept.append(character)
        elif kept and kept[-1] != "\n":
            kept.pop()
    return "".join(kept)


def fold(text: str, budget: int, line: int, more: str = "") -> FoldedText:
    """Shorten `text` to `budget` characters: its beginning and end, with lines of at most `line` characters.

    Omissions are counted in place; `more` says there how to get the rest.
    """
    if len(text) <= budget and len(text) <= line:
        return FoldedText(text, len(text), 0, len(text))
    lines = text.split("\n")
    shown = [_cap(each, max(line, _SMALLEST_LINE)) for each in lines]
    if sum(len(each.text) + 1 for each in shown) - 1 <= budget:
        return _join_lines(text, lines, shown)
    room = budget - len(_omission_mark(len(text), len(lines), more)) - 2
    cap = min(line, room // 2 - 1)
    if cap < _SMALLEST_LINE:
        kept = max(0, budget)
        return FoldedText(text[:kept], min(kept, len(text)), max(0, len(text) - kept), kept)
    shown = [_cap(each, cap) for each in lines]
    first = _fit(shown, room // 2)
    last = _fit(reversed(shown[first:]), room - room // 2)
    omitted = len(lines) - first - last
    if not omitted:  # with this cap they fit
        return _join_lines(text, lines, shown)
    cut = sum(map(len, lines[first : len(lines) - last])) + omitted - 1
    middle = _omission_mark(cut, omitted, more)
    cut += sum(each.cut_chars for each in (*shown[:first], *shown[len(shown) - last :]))
    parts = [*(each.text for each in shown[:first]), middle, *(each.text for each in shown[len(shown) - last :])]
    return FoldedText("\n".join(parts), len(text) - cut, cut, _intact_prefix(lines, shown[:first]))


def join_ends(head: str, tail: str, total: str, budget: int, line: int, more: str = "") -> str:
    """Return the first lines of `head` and the last of `tail`, the two ends of a longer text, within `budget`.

    `total` is the size of the whole text in words, for the mark between them; `more` says there how to get the rest.
    """
    mark = f"…[the middle of {total} left out{more}]…"
    room = max(0, budget - len(mark) - 2)
    cap = max(min(line, room // 2 - 1), _SMALLEST_LINE)
    first = [_cap(each, cap) for each in head.split("\n")]
    last = [_cap(each, cap) for each in tail.split("\n")]
    begin = first[: _fit(first, room // 2)]
    count = _fit(reversed(last), room - room // 2)
    return "\n".join([*(each.text for each in begin), mark, *(each.text for each in last[len(last) - count :])])


def split_budget(sizes: Sequence[int], budget: int) -> list[int]:
    """Divide `budget` among texts of these sizes: none gets more than its size, long ones share the rest."""
    parts = [0] * len(sizes)
    left = budget
    for rank, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        parts[index] = min(sizes[index], left // (len(sizes) - rank))
        left -= parts[index]
    return parts


class _CappedLine(NamedTuple):
    text: str
    cut_chars: int


def _cap(line: str, most: int) -> _CappedLine:
    if len(line) <= most:
        return _CappedLine(line, 0)
    keep = most - len(f"…[+{len(line)}]…")
    head = keep * 2 // 3
    cut = len(line) - keep
    return _CappedLine(f"{line[:head]}…[+{cut}]…{line[len(line) - (keep - head) :]}", cut)


def _join_lines(text: str, lines: Sequence[str], shown: Sequence[_CappedLine]) -> FoldedText:
    lost = sum(each.cut_chars for each in shown)
    head = _intact_prefix(lines, shown) if lost else len(text)
    return FoldedText("\n".join(each.text for each in shown), len(text) - lost, lost, head)


def _fit(lines: Iterable[_CappedLine], room: int) -> int:
    """Return how many lines, each with its newline, fit into `room` characters."""
    count = 0
    for each in lines:
        room -= len(each.text) + 1
        if room < 0:
            break
        count += 1
    return count


def _intact_prefix(lines: Sequence[str], shown: Sequence[_CappedLine]) -> int:
    """Return the number of characters at the start of the original of which nothing is missing."""
    count = 0
    for line, each in zip(lines, shown, strict=False):
        if each.cut_chars:
            break
        count += len(line) + 1
    return count


def _omission_mark(characters: int, lines: int, more: str) -> str:
    return f"…[{count_of(characters, 'character')} in {count_of(lines, 'line')} left out{more}]…"

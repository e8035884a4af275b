"""Terminal control sequences in session output, including those split between two messages. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from replwire.terminal import escape_control

_PENDING_CHARS = 4096  # characters of an incomplete sequence; a longer one is text

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<arguments>[0-?]*)[ -/]*(?P<final>[@-~])"  # CSI: colours, cursor, erasing
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
    r"|\x1b[ -/]*[0-Z\\^-~]"  # two-character sequences
)
_UNFINISHED = re.compile(
    r"(?:(?:\x1b\[|\x9b)[ -?]*|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*\x1b?|\x1b[ -/]*)\Z"
)


class SequencePart(NamedTuple):
    """A piece of text, or a sequence: then `final` is its last letter, or "" for those without arguments."""

    text: str
    final: str | None = None
    arguments: str = ""


class SequenceParser:
    """Splits one stream into text and control sequences."""

    def __init__(self) -> None:
        self._pending = ""

    def parse(self, text: str) -> Iterator[SequencePart]:
        """Yield the parts so far; an incomplete sequence is kept, bounded, for the next call."""
        text, self._pending = self._pending + text, ""
        if (cut := _UNFINISHED.search(text)) is not None and len(cut[0]) <= _PENDING_CHARS:
            text, self._pending = text[: cut.start()], cut[0]
        at = 0
        for found in _SEQUENCE.finditer(text):
            if found.start() > at:
                yield SequencePart(text[at : found.start()])
            yield SequencePart("", found["final"] or "", found["arguments"] or "")
            at = found.end()
        if at < len(text):
            yield SequencePart(text[at:])


class TerminalSanitizer:
    """One stream's text for a terminal or a pipe: only lines, tabs and (if wanted) colours remain."""

    def __init__(self, colours: bool) -> None:
        self._parser = SequenceParser()
        self._colours = colours
        self._colour_open = False

    def text(self, text: str) -> str:
        """Return the text that may be printed now."""
        return "".join(map(self._part, self._parser.parse(text)))

    def end(self) -> str:
        """Return the sequence that ends open colours, or ""."""
        painted, self._colour_open = self._colour_open, False
        return "\x1b[0m" if painted else ""

    def _part(self, part: SequencePart) -> str:
        if part.final is None:
            lines = part.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            return "\n".join(escape_control(line, "\t") for line in lines)
        if not self._colours or part.final != "m" or not re.fullmatch("[0-9;]*", part.arguments):
            return ""
        self._colour_open = part.arguments.strip("0;") != ""
        return f"\x1b[{part.arguments}m"

"""Terminal sequences in what a session prints: found, also when cut between two messages, so that none is obeyed by
accident. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from replwire.terminal import escape_control

_PENDING_CHARS = 4096  # of a sequence whose end has not come; a longer one is none

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<arguments>[0-?]*)[ -/]*(?P<final>[@-~])"  # CSI: colours, cursor, erasing
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
    r"|\x1b[ -/]*[0-Z\\^-~]"  # what has two characters
)
_UNFINISHED = re.compile(
    r"(?:(?:\x1b\[|\x9b)[ -?]*|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*\x1b?|\x1b[ -/]*)\Z"
)


class SequencePart(NamedTuple):
    """A piece of text, or a sequence: then `final` is its last letter, `` for those that have no arguments."""

    text: str
    final: str | None = None
    arguments: str = ""


class SequenceParser:
    """One stream's text in parts."""

    def __init__(self) -> None:
        self._pending = ""

    def parse(self, text: str) -> Iterator[SequencePart]:
        """What has come, up to a sequence whose end has not; that is kept, bounded, for the next."""
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
    """One stream's text for a terminal or a pipe: lines and tabs stay, colours if wished, nothing else is obeyed."""

    def __init__(self, colours: bool) -> None:
        self._parser = SequenceParser()
        self._colours = colours
        self._colour_open = False

    def text(self, text: str) -> str:
        """What may be written of it now."""
        return "".join(map(self._part, self._parser.parse(text)))

    def end(self) -> str:
        """What ends its colours."""
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

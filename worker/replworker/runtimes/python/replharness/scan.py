"""Cursor context in Python text: string, attribute, or call."""

from __future__ import annotations

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Set, Tuple

__builtins__ = SEALED

SCANNED_CHARS = 32_768  # characters scanned before the cursor
_OPENERS, _CLOSERS = "([{", ")]}"
_PREFIXES = "rRbBuUfFtT"


class CursorContext:
    """Context at the end of `code`. `start` is the beginning of the word that ends there."""

    def __init__(self, code: str) -> None:
        self.code = code[-SCANNED_CHARS:]
        self.skipped = len(code) - len(self.code)
        self.quote: Optional[str] = None  # quote of the string open at the end
        self.inside = 0  # start of that string's text
        self.comment = False
        self.brackets: List[int] = []
        self.statement = 0
        self.seen: Set[str] = set()  # names in the text, except attributes
        self._scan()
        end = len(self.code)
        self.start = self.inside if self.quote else _word_start(self.code, end)
        self.word = self.code[self.start :]

    def _scan(self) -> None:
        code, at, end = self.code, 0, len(self.code)
        while at < end:
            char = code[at]
            if char.isalpha() or char == "_":
                stop = at + 1
                while stop < end and (code[stop].isalnum() or code[stop] == "_"):
                    stop += 1
                if stop < end and code[at - 1 : at] != ".":
                    self.seen.add(code[at:stop])
                at = stop
                continue
            if char in "'\"":
                at = self._string(at)
                continue
            if char == "#":
                at = code.find("\n", at)
                if at < 0:
                    self.comment = True
                    return
                continue
            if char in _OPENERS:
                self.brackets.append(at)
            elif char in _CLOSERS:
                if self.brackets:
                    self.brackets.pop()
            elif char in "\n;:" and not self.brackets and code[at - 1 : at] != "\\":
                self.statement = at + 1
            at += 1

    def _string(self, at: int) -> int:
        """Skip a string, to the end of the text if it is open there."""
        code = self.code
        quote = code[at] * 3 if code.startswith(code[at] * 3, at) else code[at]
        here = begin = at + len(quote)
        while True:
            close, escape = code.find(quote, here), code.find("\\", here)
            if 0 <= escape < close or (close < 0 <= escape):
                here = escape + 2
                continue
            line = code.find("\n", begin) if len(quote) == 1 else -1
            if close < 0 and line < 0:
                self.quote, self.inside = quote, begin
                return len(code)
            return line if line >= 0 and (close < 0 or line < close) else close + len(quote)

    def prefix(self) -> str:
        """Return the letters before the open string's quote."""
        assert self.quote is not None
        end = self.inside - len(self.quote)
        start = end
        while start > 0 and self.code[start - 1] in _PREFIXES:
            start -= 1
        return self.code[start:end].lower()

    def chain(self, end: int) -> Optional[Tuple[int, List[str]]]:
        """Return the dotted names that end here and their start; None for anything else, such as a call."""
        path: List[str] = []
        while True:
            start = _word_start(self.code, end)
            if start == end or self.code[start].isdigit():
                return None
            path.insert(0, self.code[start:end])
            if self.code[start - 1 : start] != ".":
                return start, path
            end = start - 1


def _word_start(code: str, end: int) -> int:
    while end > 0 and (code[end - 1].isalnum() or code[end - 1] == "_"):
        end -= 1
    return end

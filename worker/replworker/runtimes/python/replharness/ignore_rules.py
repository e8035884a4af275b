"""Rules of `.gitignore` files: which paths of a directory a project does not keep."""

from __future__ import annotations

import itertools
import re

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Optional, Pattern, Tuple

    Rule = Tuple[Pattern[bytes], bool, bool]  # matches a path, is for directories only, is negated

__builtins__ = SEALED

MAX_FILE_BYTES = 1 << 18
_MAX_RULES = 2000  # of one file
_MAX_LINE = 1000  # bytes of a rule
_TOKEN = re.compile(rb"\\(.)|(\*+)|(\?)|(\[[!^]?\]?(?:\\.|[^\]\\])*\])|([^\\*?\[]+|\[|\\)", re.S)


class IgnoreRules:
    """Rules that apply in a directory: those of its own file outweigh those of the directory above."""

    def __init__(self, above: Optional[IgnoreRules] = None, text: bytes = b"", at: int = 0) -> None:
        self._above = above
        self._rules = _parse(text)
        self._at = at  # length of the directory's path with its slash

    def extend(self, text: bytes, at: int) -> IgnoreRules:
        """Return the rules of a directory whose path has `at` bytes, with a slash, and whose file has this text."""
        return IgnoreRules(self, text, at) if text else self

    def ignores(self, path: bytes, is_directory: bool) -> bool:
        """Return whether the project ignores a path, of which no directory above is ignored."""
        level: Optional[IgnoreRules] = self
        while level is not None:
            for pattern, only_directories, is_negated in reversed(level._rules):
                if (is_directory or not only_directories) and pattern.match(path, level._at):
                    return not is_negated
            level = level._above
        return False


def _parse(text: bytes) -> List[Rule]:
    rules: List[Rule] = []
    for line in text.split(b"\n")[:_MAX_RULES]:
        rule = _parse_line(line)
        if rule is not None:
            rules.append(rule)
    return rules


def _parse_line(line: bytes) -> Optional[Rule]:
    line = line[:-1] if line.endswith(b"\r") else line
    line = re.sub(rb"(?<!\\) +\Z", b"", line)
    is_negated = line.startswith(b"!")
    line = line[is_negated:]
    if not line or len(line) > _MAX_LINE or (line.startswith(b"#") and not is_negated):
        return None
    only_directories = line.endswith(b"/")
    line = line[:-1] if only_directories else line
    anchored = b"/" in line
    try:
        prefix = b"" if anchored else b"(?:[^/]+/)*"
        pattern = re.compile(prefix + _translate(line.lstrip(b"/")) + rb"\Z", re.S)
    except re.error:
        return None
    return pattern, only_directories, is_negated


def _translate(glob: bytes) -> bytes:
    """Translate a pattern to a regular expression that no path takes long to match.

    After `*` or `**` the first place where the next piece fits is taken, for good: if the rest does not match from
    there, it does not from a later one. Only what comes last is tried at every place.
    """
    numbers = itertools.count()
    runs: List[List[bytes]] = [[]]  # parts between `**`
    parts = glob.split(b"/")
    for at, part in enumerate(parts):
        if part == b"**" and at < len(parts) - 1:
            if at == 0 or parts[at - 1] != b"**":
                runs.append([])
        else:
            runs[-1].append(b"[^/]+(?:/[^/]+)*" if part == b"**" else _translate_part(part, numbers))
    out = b"/".join(runs[0]) + (b"/" if runs[0] and len(runs) > 1 else b"")
    for run in runs[1:-1]:
        out += _first(b"(?:[^/]+/)*?" + b"/".join(run) + b"/", numbers)
    return out + (b"(?:[^/]+/)*" + b"/".join(runs[-1]) if len(runs) > 1 else b"")


def _first(pattern: bytes, numbers: Iterator[int]) -> bytes:
    """Return a group that keeps its first match."""
    name = b"g%d" % next(numbers)
    return b"(?=(?P<" + name + b">" + pattern + b"))(?P=" + name + b")"


def _translate_part(part: bytes, numbers: Iterator[int]) -> bytes:
    """Translate a pattern for one name."""
    pieces: List[bytes] = [b""]  # between stars
    for escaped, star, question, chars, plain in _TOKEN.findall(part):
        if star:
            if pieces[-1] or len(pieces) == 1:
                pieces.append(b"")
        elif question:
            pieces[-1] += b"[^/]"
        elif chars:
            pieces[-1] += _translate_set(chars[1:-1])
        else:
            pieces[-1] += re.escape(escaped or plain)
    if len(pieces) == 1:
        return pieces[0]
    middle = b"".join(_first(b"[^/]*?" + piece, numbers) for piece in pieces[1:-1])
    return pieces[0] + middle + b"[^/]*" + pieces[-1] + b"(?![^/])"


def _translate_set(inner: bytes) -> bytes:
    inner = b"^" + inner[1:] if inner[:1] in (b"!", b"^") else inner
    return b"(?!/)[" + inner.replace(b"[", rb"\[") + b"]"

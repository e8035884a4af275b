"""Tracebacks for a model: the user's frames and the last library frame; runs of other library frames are counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# Where libraries live, up to the part of the path that names the module.
_LIBRARY = re.compile(r"^(?:.*/(?:site|dist)-packages/|.*/lib(?:64)?/python3[^/]*/|(?=<frozen ))")
_FRAME = re.compile(r'^(?P<bars>[ |]*)  File "(?P<file>[^"]*)", line (?P<rest>.*)$')
_CARETS = re.compile(r"^[ |]*[\^~]+[\^~ ]*$")
_NODE = re.compile(r"^\s+at .*(?:\(|\s)node:|^\s+at .*/node_modules/")


class FoldedTraceback(NamedTuple):
    """A traceback and the number of frames left out of it."""

    text: str
    left_out: int


def fold_traceback(text: str) -> FoldedTraceback:
    """Fold the library frames of a traceback of Python or Node, and drop the marks below lines of code.

    Of each run of library frames that ends a traceback the last one stays, with its path from the library's root.
    A traceback that another one followed has no last frame: its own error is enough.
    """
    lines, left_out = [], 0
    run: list[list[str]] = []
    blocks = list(_blocks(text))
    for number, block in enumerate(blocks):
        if (short := _library_frame(block)) is not None:
            run.append(short)
            continue
        if run:
            chained = any(_is_chain(each[0]) for each in blocks[number + 1 :])
            kept = [] if chained or not _ends_traceback(block) else run[-1]
            omitted = len(run) - bool(kept)
            if omitted:
                lines.append(f"  … {omitted} library frame{'s' if omitted > 1 else ''}")
            lines += kept
            left_out += omitted
            run = []
        lines += block
    return FoldedTraceback("\n".join(lines), left_out)


def _blocks(text: str) -> Iterator[list[str]]:
    """Yield the frames, each with its lines of code, and every other line alone."""
    frame: list[str] = []
    for line in text.split("\n"):
        if frame and (_CARETS.match(line) and len(frame) > 1):
            continue
        start = _FRAME.match(line)
        if frame and start is None and line.startswith(_FRAME.match(frame[0])["bars"] + "    "):  # type: ignore[index]
            frame.append(line)
            continue
        if frame:
            yield frame
            frame = []
        if start is not None:
            frame = [line]
        else:
            yield [line]
    if frame:
        yield frame


def _library_frame(block: list[str]) -> list[str] | None:
    """Return a library's frame with its path shortened, or None for any other lines."""
    start = _FRAME.match(block[0])
    if start is None:
        return block if _NODE.match(block[0]) else None
    inside = _LIBRARY.sub("", start["file"], count=1)
    if inside == start["file"] and not inside.startswith("<frozen "):
        return None
    return [f'{start["bars"]}  File "{inside}", line {start["rest"]}', *block[1:]]


def _ends_traceback(block: list[str]) -> bool:
    """Return whether a line after frames is the error itself, as it is not indented."""
    return not block[0].startswith(" ") and _FRAME.match(block[0]) is None


def _is_chain(line: str) -> bool:
    return line.startswith(("During handling of the above exception", "The above exception was the direct cause"))

"""Parser for stack dumps of Python's faulthandler.

The text is untrusted. Format: Doc/library/faulthandler.rst of CPython.
"""

from __future__ import annotations

import re
from typing import Any

MAX_BYTES = 1024 * 1024
MAX_THREADS = 100
MAX_FRAMES = 100  # per thread, innermost; faulthandler writes no more
_NAME_CHARS = 256
_PATH_CHARS = 1024
_THREAD = re.compile(r"(Current thread|Thread) (0x[0-9a-f]{1,16})(?: \[([^\]]{0,500})\])? \(most recent call first\):")
# Greedy: a path may contain quotes, so the last match is the right one.
_FRAME = re.compile(r'  File (?:"(.*)"|\?\?\?), line ([0-9]{1,9}|\?\?\?) in (.*)')
_HARNESS = re.compile(r"/replworker/runtimes/python/(?:harness\.py|replharness/[^/]+)$")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def parse(data: bytes | bytearray) -> list[dict[str, Any]]:
    """Return threads as `{"thread": name, "frames": [{"func", "file", "line"}, ...]}`, most recent call last.

    The thread that got the signal, usually the one that runs the eval, is "main" and comes first; others have their
    name or number. Frames of the harness, and threads with no others, are left out. Bounded to 1 MiB, 100 threads, and
    100 frames of each. Unknown lines are skipped; nothing is raised.
    """
    threads: list[tuple[str, list[dict[str, Any]]]] = []
    for line in data[:MAX_BYTES].decode("ascii", "replace").split("\n"):
        head = _THREAD.fullmatch(line)
        if head is not None:
            if len(threads) == MAX_THREADS:
                break
            word = "main" if head[1] == "Current thread" else (head[3] or head[2])[:_NAME_CHARS]
            threads.append((word, []))
            continue
        frame = _FRAME.fullmatch(line)
        if frame is not None and threads:
            _add(threads[-1][1], frame)
    threads.sort(key=lambda each: each[0] != "main")
    return [{"thread": word, "frames": frames[::-1]} for word, frames in threads if frames]


def _add(frames: list[dict[str, Any]], frame: re.Match[str]) -> None:
    file = _unescaped(frame[1] or "???")
    if len(frames) < MAX_FRAMES and not _HARNESS.search(file):
        line = 0 if frame[2] == "???" else int(frame[2])
        frames.append({"func": _unescaped(frame[3])[:_NAME_CHARS], "file": file[:_PATH_CHARS], "line": line})


def _unescaped(text: str) -> str:
    """Decode escapes of non-ASCII characters; backslashes themselves are not escaped, so this is ambiguous."""
    return _ESCAPE.sub(_character, text)


def _character(escape: re.Match[str]) -> str:
    code = int(escape[1] or escape[2] or escape[3], 16)
    return escape[0] if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)

"""Reads of what a session or a project may have put there: regular files only, bounded, and never a wait."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

MAX_ENTRIES = 20_000  # of one folder: a site-packages has some hundreds
_BYTES_AT_ONCE = 64 * 1024


class Oversized(ValueError):
    """A file or a folder is larger than anything of its kind would be."""


def read_text(path: str, most: int) -> str | None:
    """The text of a regular file, None where there is none that can be read. Raises Oversized past `most` bytes.

    What is opened is what is checked, and opening does not wait: neither for a FIFO's writer nor for a device.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return read_bounded(fd, most, path).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def read_bounded(fd: int, most: int, name: str) -> bytes:
    """What is left to read in an open file, which may grow meanwhile. Raises Oversized past `most` bytes."""
    data = bytearray()
    while piece := os.read(fd, min(_BYTES_AT_ONCE, most + 1 - len(data))):
        data += piece
        if len(data) > most:
            raise Oversized(f"{name} is longer than {most} bytes")
    return bytes(data)


def list_matching(folder: str, pattern: str) -> Iterator[str]:
    """Paths of the entries whose whole name matches, in order; none where there is no such folder. Raises Oversized."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for _, entry in zip(range(MAX_ENTRIES + 1), entries, strict=False)]
    except (OSError, ValueError):  # a NUL in its name
        return
    if len(found) > MAX_ENTRIES:
        raise Oversized(f"{folder} has more than {MAX_ENTRIES} entries")
    yield from (f"{folder}/{name}" for name in sorted(found) if re.fullmatch(pattern, name))

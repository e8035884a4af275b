"""Bounded, non-blocking reads of untrusted files: regular files only."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

MAX_ENTRIES = 20_000  # per directory; a site-packages has some hundreds
_BYTES_AT_ONCE = 64 * 1024


class Oversized(ValueError):
    """A file or directory exceeds its size limit."""


def read_text(path: str, most: int) -> str | None:
    """Return the text of a regular file, or None if it cannot be read.

    The check is done on the open descriptor, and opening does not block on FIFOs or devices.

    Raises:
        Oversized: the file is longer than `most` bytes
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
    """Read the rest of an open file, which may grow meanwhile.

    Raises:
        Oversized: there are more than `most` bytes
    """
    data = bytearray()
    while piece := os.read(fd, min(_BYTES_AT_ONCE, most + 1 - len(data))):
        data += piece
        if len(data) > most:
            raise Oversized(f"{name} is longer than {most} bytes")
    return bytes(data)


def list_matching(directory: str, pattern: str) -> Iterator[str]:
    """Yield the sorted paths of entries whose whole name matches; none if the directory is missing.

    Raises:
        Oversized: the directory has too many entries
    """
    try:
        with os.scandir(directory) as entries:
            found = [entry.name for _, entry in zip(range(MAX_ENTRIES + 1), entries, strict=False)]
    except (OSError, ValueError):  # a NUL in its name
        return
    if len(found) > MAX_ENTRIES:
        raise Oversized(f"{directory} has more than {MAX_ENTRIES} entries")
    yield from sorted(f"{directory}/{name}" for name in filter(re.compile(pattern).fullmatch, found))

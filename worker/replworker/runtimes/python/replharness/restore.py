"""Restoring of snapshots: binds the names in a file written by snapshot.py."""

from __future__ import annotations

import io
import marshal
import os
import sys

from . import SEALED
from .snapshot import ENDS_ALL, SilencedDill, SkippedNames, SnapshotError, head
from .unpickler import create_unpicklers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

    from .snapshot import Section

__builtins__ = SEALED

_BUFFER_BYTES = 1 << 18
_HEAD_BYTES = 100
_PIECE_BYTES = 1 << 30  # per read: the system reads at most 2 GiB at once


def restore(main: Any, fd: int, dill: Any, span: Tuple[int, Optional[int]] = (0, None)) -> Dict[str, Any]:
    """Bind the names in a file written by `dump`, and extend `sys.path` as in its session.

    Args:
        main: the module that gets the names
        fd: the file
        dill: the module dill
        span: begin and end of the snapshot in the file; None: the file's end

    Raises:
        SnapshotError: the file is not a snapshot, or that of another implementation of Python
    """
    with io.FileIO(fd, "r", closefd=False) as raw:
        size = raw.seek(0, os.SEEK_END)
        begin, end = span[0], size if span[1] is None else min(size, span[1])
        file: Any = io.BufferedReader(raw, _BUFFER_BYTES)
        try:
            at, foreign = _read_head(file, begin)
            sections, modules, path = _index(file, at, end)
            sys.path.extend(entry for entry in path if entry not in sys.path)
            left = SkippedNames()
            count = _import_all(main, modules, left)
            with SilencedDill(dill):
                count += _Reading(main, fd, file, at, sections, foreign).bind(left)
        finally:
            file.detach()
    return {"count": count, "bytes": end - begin, "skipped": left.rows()}


def _import_all(main: Any, modules: List[Tuple[str, str]], left: SkippedNames) -> int:
    count = 0
    for name, module in modules:
        try:
            SEALED["__import__"](module)
            main.__dict__[name] = sys.modules[module]
            count += 1
        except ENDS_ALL:
            raise
        except BaseException as exc:
            left.add(name, type(sys), exc)
    return count


class _Reading:
    """Reads section by section; after a failure starts again, slower, without the failing ones."""

    def __init__(
        self, main: Any, fd: int, file: Any, begin: int, sections: List[Section], foreign: Optional[str]
    ) -> None:
        self._namespace = main.__dict__
        self._file = file
        self._fd = fd
        self._begin = begin
        self._sections = sections
        self._sizes: List[int] = []
        self._at = 0
        self._fast, self._patient = create_unpicklers(main, _Plain(file), self, foreign)

    def bind(self, left: SkippedNames) -> int:
        """Bind the names and return their number."""
        before = dict(self._namespace)
        try:
            for name, _ in self._begun():
                self._namespace[name] = self._fast.load()
            return len(self._sections)
        except ENDS_ALL:
            raise
        except BaseException:
            self._namespace.clear()
            self._namespace.update(before)
        count, patient = 0, self._patient
        for name, memo in self._begun():
            known = len(patient.memo)
            try:
                self._namespace[name] = patient.load()
                count += 1
            except ENDS_ALL:
                raise
            except BaseException as exc:
                left.add(name, None, exc)
                patient.skip(known, memo)
        return count

    def _begun(self) -> Iterator[Tuple[str, int]]:
        """Yield each name, with the file at its pickle and the memo count after it."""
        at = self._begin
        for name, length, sizes, memo in self._sections:
            self._file.seek(at)
            self._sizes, self._at = list(sizes), at + length
            yield name, memo
            at += length + sum(sizes)

    def __iter__(self) -> _Reading:
        return self

    def __next__(self) -> Any:
        """Return the next buffer of the section."""
        data = bytearray(self._sizes.pop(0))
        view = memoryview(data)
        while view:
            count = os.preadv(self._fd, [view[:_PIECE_BYTES]], self._at)
            if not count:
                raise SnapshotError("an incomplete snapshot")
            view = view[count:]
            self._at += count
        return data


class _Plain:
    """A file without peek: the unpickler reads no more than it needs, so seeking stays possible."""

    def __init__(self, file: Any) -> None:
        self.read, self.readline, self.readinto = file.read, file.readline, file.readinto


def _read_head(file: Any, begin: int) -> Tuple[int, Optional[str]]:
    """Return where the first pickle begins, and the Python that wrote the file if it is of another version."""
    file.seek(begin)
    header, ours = file.readline(_HEAD_BYTES), head()
    if not header.startswith(ours.partition(b",")[0] + b",") or not header.endswith(b"\n"):
        raise SnapshotError("not a snapshot")
    if header == ours:
        return begin + len(header), None
    theirs, this = (line.partition(b",")[2].strip().decode("ascii", "replace") for line in (header, ours))
    if theirs.partition(".")[0] != this.partition(".")[0]:
        raise SnapshotError("written by %s, but this is %s" % (theirs, this))
    return begin + len(header), theirs


def _index(file: Any, begin: int, end: int) -> Any:
    """Read the index at the end of a snapshot whose first pickle begins at `begin`."""
    try:
        file.seek(max(begin, end - 8))
        length = int.from_bytes(file.read(8), "big")
        if length > end - 8 - begin:
            raise ValueError
        file.seek(end - 8 - length)
        sections, modules, path = marshal.loads(file.read(length))
        return sections, modules, path
    except (ValueError, EOFError, TypeError, OSError):
        raise SnapshotError("an incomplete snapshot") from None

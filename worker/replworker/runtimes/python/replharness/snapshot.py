"""Snapshot of a session's variables in a file.

File format: a line that identifies the writer; for each name a pickle and its out-of-band buffers; an index (marshal);
its length in eight bytes. The pickles share one memo, so objects shared by two names stay shared. A name that cannot be
written is cut off again, and one that cannot be read is skipped; both are reported with a reason.
"""

from __future__ import annotations

import io
import marshal
import os
import sys

from . import SEALED
from .bounds import NAME_CHARS, cut, plain, type_name
from .pickler import LOCKS, create_pickler, module_name
from .static_inspect import is_module
from .unpickler import NotCopyable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    Section = Tuple[str, int, List[int], int]  # name, bytes of its pickle and its buffers, size of the memo after it

__builtins__ = SEALED

MAX_SKIPPED = 100
_WHY_BYTES = 200
_BUFFER_BYTES = 1 << 18
_NOT_THE_USERS = frozenset(("__name__", "__doc__", "__loader__", "__spec__", "__package__", "__builtins__"))
ENDS_ALL = (KeyboardInterrupt, MemoryError)
_MARSHAL_VERSION = 4  # every Python from 3.8 on reads it
_DIRECT = (*LOCKS, type(_ for _ in ()))


class SnapshotError(Exception):
    """The snapshot failed. The message says why."""


def dump(main: Any, fd: int, most: int, dill: Any) -> Dict[str, Any]:
    """Write the user's variables; return the fields of DumpedFrame except `t` and `n`.

    Raises:
        SnapshotError: there are more than `most` bytes
    """
    out = _BoundedFile(fd, most)
    buffers: List[Any] = []
    writer = create_pickler(dill, main, out, buffers.append)
    sections: List[Section] = []
    modules: List[Tuple[str, str]] = []
    left = SkippedNames()
    out.write(head())
    with SilencedDill(dill):
        for name, value in list(main.__dict__.items()):
            if type(name) is not str or name in _NOT_THE_USERS:
                continue
            known = module_name(value) if is_module(value) and value is not main else None
            if known is not None:
                modules.append((name, known))
                continue
            begin, count = out.at, len(writer.memo)
            try:
                _refuse_at_once(value)
                writer.dump(value)
                middle = out.at
                sections.append((name, middle - begin, _write_all(out, buffers), len(writer.memo)))
                writer.part(count)
            except (SnapshotError, *ENDS_ALL):
                raise
            except BaseException as exc:
                left.add(name, type(value), exc)
                out.rewind(begin)
                while len(writer.memo) > count:
                    writer.memo.popitem()
                writer._postproc.clear()
            buffers.clear()
    path = [entry for entry in sys.path if type(entry) is str]
    index = marshal.dumps((sections, modules, path), _MARSHAL_VERSION)
    out.write(index)
    out.write(len(index).to_bytes(8, "big"))
    out.flush()
    return {"count": len(sections) + len(modules), "bytes": out.at, "skipped": left.rows()}


def head() -> bytes:
    about = (sys.implementation.name, *sys.version_info[:2])
    return b"replctl snapshot 1, %s %d.%d\n" % (about[0].encode(), about[1], about[2])


class _BoundedFile:
    """A file with a size limit for writing."""

    def __init__(self, fd: int, most: int) -> None:
        self.at = 0
        self._fd = fd
        self._most = most
        try:
            os.lseek(fd, 0, os.SEEK_SET)
            os.ftruncate(fd, 0)
        except OSError:
            raise SnapshotError("the descriptor is not a file") from None
        self._file: Any = io.BufferedWriter(io.FileIO(fd, "w", closefd=False), _BUFFER_BYTES)

    def write(self, data: Any) -> int:
        size = data.nbytes if type(data) is memoryview else len(data)
        if self.at + size > self._most:
            self._file.flush()
            os.ftruncate(self._fd, 0)
            raise SnapshotError("snapshot over %d bytes" % self._most)
        written: int = self._file.write(data)
        self.at += size
        return written

    def rewind(self, to: int) -> None:
        """Discard everything written after `to`."""
        self._file.seek(to)  # flushes pending data
        self._file.truncate(to)
        self.at = to

    def flush(self) -> None:
        self._file.flush()


def _write_all(out: _BoundedFile, buffers: List[Any]) -> List[int]:
    sizes = []
    for each in buffers:
        with each.raw() as view:
            out.write(view)
            sizes.append(view.nbytes)
    return sizes


def _refuse_at_once(value: Any) -> None:
    # A free lock inside another object is recreated; as a variable it would have to be shared.
    if type(value) in _DIRECT:
        raise NotCopyable("a %s belongs to its process" % type_name(type(value)))


class SkippedNames:
    """Names that could not be copied."""

    def __init__(self) -> None:
        self._rows: List[Dict[str, str]] = []
        self._more = 0

    def add(self, name: str, kind: Any, exc: BaseException) -> None:
        if len(self._rows) >= MAX_SKIPPED:
            self._more += 1
            return
        try:
            message = str(exc)
        except BaseException:
            message = ""
        what = message if type(exc) is NotCopyable else "%s: %s" % (type_name(type(exc)), message)
        why = what if kind is None else "%s: %s" % (type_name(kind), what)
        self._rows.append({"name": plain(name[:NAME_CHARS]), "why": cut(why.rstrip(": "), _WHY_BYTES)[0]})

    def rows(self) -> List[Dict[str, str]]:
        more = [{"name": "…", "why": "and %d more" % self._more}] if self._more else []
        return self._rows + more


class SilencedDill:
    """Context without dill's warnings: their causes are reported as skipped names, or are harmless."""

    def __init__(self, dill: Any) -> None:
        self._kind = dill.PickleWarning

    def __enter__(self) -> None:
        import warnings

        self._saved = warnings.catch_warnings()
        self._saved.__enter__()
        warnings.simplefilter("ignore", self._kind)

    def __exit__(self, *failed: Any) -> None:
        self._saved.__exit__(*failed)

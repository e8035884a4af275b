"""A session's names in a file, and back.

The file: a line that says who wrote it; for each name a pickle and the buffers that were kept out of it; an index
(marshal); its length in eight bytes. The pickles share one memo, so that what two names share stays shared. A name
that cannot be written is cut off again, and one that cannot be read is skipped: both are told with a reason.
"""

from __future__ import annotations

import io
import os
import sys
import marshal
import _socket

from . import SEALED
from .bounds import NAME_CHARS, cut, plain, type_name
from .pickles import Refused, module_name, pickler
from .revive import revivers
from .statics import is_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Tuple

    Section = Tuple[str, int, List[int], int]  # name, bytes of its pickle and of its buffers, size of the memo after it

__builtins__ = SEALED

LEFT_BEHIND = 100
_WHY_BYTES = 200
_BUFFER_BYTES = 1 << 18
_PIECE_BYTES = 1 << 30  # of one read: the system does not do more than 2 GiB at once
_CLOEXEC = 0x40000000  # MSG_CMSG_CLOEXEC
_NOT_THE_USERS = frozenset(("__name__", "__doc__", "__loader__", "__spec__", "__package__", "__builtins__"))
_ENDS_ALL = (KeyboardInterrupt, MemoryError)
_DIRECT = ("generator", "coroutine", "async_generator", "lock", "RLock")


class SnapshotError(Exception):
    """Nothing came of it, and this is why."""


class parcel:  # noqa: N801 - used as a function
    """The descriptor that came with a frame, closed in the end. Of several the last one counts."""

    def __init__(self, parcel_fd: int) -> None:
        self._fds: List[int] = []
        sock = _socket.socket(fileno=parcel_fd)
        try:
            while self._receive(sock):
                pass
        finally:
            sock.detach()

    def _receive(self, sock: Any) -> bool:
        try:
            data, parts, _, _ = sock.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_DONTWAIT | _CLOEXEC)
        except OSError:
            return False
        for level, kind, content in parts:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                self._fds += [int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, len(content), 4)]
        return bool(data)

    def __enter__(self) -> int:
        for fd in self._fds[:-1]:
            os.close(fd)
        del self._fds[:-1]
        if not self._fds:
            raise SnapshotError("no descriptor came along")
        return self._fds[0]

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)


def dump(main: Any, fd: int, most: int, dill: Any) -> Dict[str, Any]:
    """Write the user's names. The fields of Dumped but `t` and `n`. Raises SnapshotError when it is over `most` bytes."""
    out = _Bounded(fd, most)
    buffers: List[Any] = []
    writer = pickler(dill, main, out, buffers.append)
    sections: List[Section] = []
    modules: List[Tuple[str, str]] = []
    left = _Left()
    out.write(_head())
    with _quiet(dill):
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
            except (SnapshotError, *_ENDS_ALL):
                raise
            except BaseException as exc:
                left.add(name, type(value), exc)
                out.rewind(begin)
                while len(writer.memo) > count:
                    writer.memo.popitem()
                writer._postproc.clear()
            buffers.clear()
    path = [entry for entry in sys.path if type(entry) is str]
    index = marshal.dumps((sections, modules, path))
    out.write(index)
    out.write(len(index).to_bytes(8, "big"))
    out.flush()
    return {"count": len(sections) + len(modules), "bytes": out.at, "left-behind": left.rows()}


def restore(main: Any, fd: int, dill: Any) -> Dict[str, Any]:
    """Bind the names of a file that `dump` wrote. Raises SnapshotError when it is no such file, or another python's."""
    with io.FileIO(fd, "r", closefd=False) as raw:
        size = raw.seek(0, os.SEEK_END)
        file: Any = io.BufferedReader(raw, _BUFFER_BYTES)
        try:
            sections, modules, path = _index(file, size)
            sys.path.extend(entry for entry in path if entry not in sys.path)
            left = _Left()
            count = _import_all(main, modules, left)
            with _quiet(dill):
                count += _Reading(main, fd, file, sections).bind(left)
        finally:
            file.detach()
    return {"count": count, "bytes": size, "left-behind": left.rows()}


def _import_all(main: Any, modules: List[Tuple[str, str]], left: _Left) -> int:
    count = 0
    for name, module in modules:
        try:
            SEALED["__import__"](module)
            main.__dict__[name] = sys.modules[module]
            count += 1
        except _ENDS_ALL:
            raise
        except BaseException as exc:
            left.add(name, type(sys), exc)
    return count


class _Reading:
    """Reads the sections one after the other; at the first that fails begins anew, slower, and leaves out what fails."""

    def __init__(self, main: Any, fd: int, file: Any, sections: List[Section]) -> None:
        self._namespace = main.__dict__
        self._file = file
        self._fd = fd
        self._sections = sections
        self._sizes: List[int] = []
        self._at = 0
        self._fast, self._patient = revivers(main, _Plain(file), self)

    def bind(self, left: _Left) -> int:
        """How many names were bound."""
        before = dict(self._namespace)
        try:
            for name, _ in self._begun():
                self._namespace[name] = self._fast.load()
            return len(self._sections)
        except _ENDS_ALL:
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
            except _ENDS_ALL:
                raise
            except BaseException as exc:
                left.add(name, None, exc)
                patient.skip(known, memo)
        return count

    def _begun(self) -> Iterator[Tuple[str, int]]:
        """Each name, with the file standing where its pickle begins, and what the memo counts after it."""
        at = len(_head())
        for name, length, sizes, memo in self._sections:
            self._file.seek(at)
            self._sizes, self._at = list(sizes), at + length
            yield name, memo
            at += length + sum(sizes)

    def __iter__(self) -> _Reading:
        return self

    def __next__(self) -> Any:
        """The next buffer of the section."""
        data = bytearray(self._sizes.pop(0))
        view = memoryview(data)
        while view:
            count = os.preadv(self._fd, [view[:_PIECE_BYTES]], self._at)
            if not count:
                raise SnapshotError("a snapshot that is not whole")
            view = view[count:]
            self._at += count
        return data


class _Plain:
    """A file that cannot be peeked into: the unpickler then takes no more than it needs, and seeking stays ours."""

    def __init__(self, file: Any) -> None:
        self.read, self.readline, self.readinto = file.read, file.readline, file.readinto


def _head() -> bytes:
    about = (sys.implementation.name, *sys.version_info[:2])
    return b"replctl snapshot 1, %s %d.%d\n" % (about[0].encode(), about[1], about[2])


def _index(file: Any, size: int) -> Any:
    file.seek(0)
    head, ours = file.readline(100), _head()
    if not head.startswith(ours.partition(b",")[0]):
        raise SnapshotError("not a snapshot")
    if head != ours:
        theirs = head.partition(b",")[2].strip().decode("ascii", "replace")
        raise SnapshotError("written by %s, and this is %s" % (theirs, ours.partition(b",")[2].strip().decode()))
    try:
        file.seek(size - 8)
        length = int.from_bytes(file.read(8), "big")
        if length > size - 8 - len(ours):
            raise ValueError
        file.seek(size - 8 - length)
        return marshal.loads(file.read(length))
    except (ValueError, EOFError, TypeError, OSError):
        raise SnapshotError("a snapshot that is not whole") from None


class _Bounded:
    """A file to write to, up to a number of bytes."""

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
        """Forget what was written after `to`."""
        self._file.seek(to)  # writes out what waits
        self._file.truncate(to)
        self.at = to

    def flush(self) -> None:
        self._file.flush()


def _write_all(out: _Bounded, buffers: List[Any]) -> List[int]:
    sizes = []
    for each in buffers:
        with each.raw() as view:
            out.write(view)
            sizes.append(view.nbytes)
    return sizes


def _refuse_at_once(value: Any) -> None:
    # A lock inside of something is made anew when it is free; as a name of its own it is there to be shared.
    name = type_name(type(value))
    if type(value).__module__ in ("builtins", "_thread") and name in _DIRECT:
        raise Refused("a %s belongs to its process" % name)


class _Left:
    """Names that could not come along."""

    def __init__(self) -> None:
        self._rows: List[Dict[str, str]] = []
        self._more = 0

    def add(self, name: str, kind: Any, exc: BaseException) -> None:
        if len(self._rows) >= LEFT_BEHIND:
            self._more += 1
            return
        try:
            said = str(exc)
        except BaseException:
            said = ""
        what = said if type(exc) is Refused else "%s: %s" % (type_name(type(exc)), said)
        why = what if kind is None else "%s: %s" % (type_name(kind), what)
        self._rows.append({"name": plain(name[:NAME_CHARS]), "why": cut(why.rstrip(": "), _WHY_BYTES)[0]})

    def rows(self) -> List[Dict[str, str]]:
        more = [{"name": "…", "why": "and %d more" % self._more}] if self._more else []
        return self._rows + more


class _quiet:  # noqa: N801 - used as a function
    """Without dill's warnings: what they are about is told as left behind, or is all right."""

    def __init__(self, dill: Any) -> None:
        self._kind = dill.PickleWarning

    def __enter__(self) -> None:
        import warnings

        self._saved = warnings.catch_warnings()
        self._saved.__enter__()
        warnings.simplefilter("ignore", self._kind)

    def __exit__(self, *failed: Any) -> None:
        self._saved.__exit__(*failed)

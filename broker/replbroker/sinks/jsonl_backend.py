"""Transcripts as JSON lines: one file a session, a header line and then its events.

A file is appended to and never rewritten. A file that grows beyond half its bound becomes `.1.jsonl`, replacing the
`.1.jsonl` before it. A broker that is killed leaves half a line at worst, which readers skip and the next append ends.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from replbroker.sinks.transcript_backend import (
    HEADER,
    CorruptEntry,
    Entry,
    NoTranscript,
    TranscriptExists,
    TranscriptInfo,
    header_entry,
    searchable_text,
)
from replwire.events import BROKER
from replwire.private_directories import make_private_directory

_MAX_OPEN = 32  # descriptors
_ID = re.compile(r"[A-Za-z0-9_-]{1,256}\Z")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode


class JsonlBackend:
    """Transcripts in a directory; see `TranscriptBackend`.

    Args:
        directory: The directory; created when it is needed.
        max_session_bytes: Bound on one session's transcript, in bytes; each of its two files has half of it.
    """

    def __init__(self, directory: Path, max_session_bytes: int) -> None:
        self._directory = directory
        self._max_segment_bytes = max_session_bytes // 2
        self._open: OrderedDict[str, int] = OrderedDict()

    def _path(self, session: str, part: str = "") -> Path:
        if not _ID.match(session):
            raise NoTranscript(session)
        return self._directory / f"{session}{part}.jsonl"

    # --- writing ---

    def create(self, info: TranscriptInfo) -> None:
        path = self._path(info.session)
        make_private_directory(self._directory)
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise TranscriptExists(info.session) from None
        try:
            self._add_open_file(info.session, fd)
            self._write(fd, _encode(header_entry(info)) + b"\n")
            os.fsync(fd)
        except OSError:
            self.close(info.session)
            path.unlink(missing_ok=True)
            raise

    def open(self, info: TranscriptInfo) -> None:
        if (fd := self._open.get(info.session)) is not None:
            if os.fstat(fd).st_nlink:
                return
            self.close(info.session)  # the file was deleted: later entries are still written
        try:
            self.open_existing(info.session)
        except NoTranscript:
            self.create(info)

    def open_existing(self, session: str) -> TranscriptInfo:
        info = self.get(session)
        if info is None:
            raise NoTranscript(session)
        if session not in self._open:
            fd = os.open(self._path(session), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
            self._add_open_file(session, fd)
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":  # half a line of a broker that was killed
                self._write(fd, b"\n")
        return info

    def _add_open_file(self, session: str, fd: int) -> None:
        try:
            if session != BROKER:  # shared by all brokers of a user; each line is one write
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        self._open[session] = fd
        if len(self._open) > _MAX_OPEN:
            self.close(next(iter(self._open)))

    def append(self, session: str, entries: Sequence[bytes]) -> None:
        if session not in self._open:
            self.open_existing(session)
        data = b"".join(entry + b"\n" for entry in entries)
        size = os.fstat(self._open[session]).st_size
        if size + len(data) > self._max_segment_bytes:
            self._rotate(session)
        self._open.move_to_end(session)
        self._write(self._open[session], data)

    def _rotate(self, session: str) -> None:
        info, older = self.get(session), self._path(session, ".1")
        assert info is not None
        os.replace(self._path(session), older)
        self.close(session)
        try:
            self.create(info)
        except OSError:  # a full disk: the old file stays readable
            os.replace(older, self._path(session))
            raise

    @staticmethod
    def _write(fd: int, data: bytes) -> None:
        size = os.fstat(fd).st_size
        try:
            written = os.write(fd, data)
            if written < len(data):
                raise OSError("no room")
        except OSError:
            os.ftruncate(fd, size)  # all or nothing: leave no half line
            raise

    def close(self, session: str) -> None:
        fd = self._open.pop(session, None)
        if fd is not None:
            os.close(fd)

    def close_all(self) -> None:
        for session in tuple(self._open):
            self.close(session)

    # --- reading ---

    def load(self, session: str, *, strict: bool = False) -> Iterator[Entry]:
        if self.get(session) is None:
            raise NoTranscript(session)
        for part in (".1", ""):
            try:
                file = self._path(session, part).open("rb")
            except FileNotFoundError:
                continue
            with file:
                for line in file:
                    if (entry := self._parse_entry(line, strict)) is not None:
                        yield entry

    @staticmethod
    def _parse_entry(line: bytes, strict: bool) -> Entry | None:
        try:
            entry = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if strict and line.strip():
                raise CorruptEntry(f"not an entry: {line[:80]!r}") from None
            return None
        return entry if entry.get("type") != HEADER else None

    def entries_since(self, session: str, seq: int) -> Iterator[Entry]:
        return (entry for entry in self.load(session) if entry.get("seq", 0) > seq)

    def get(self, session: str) -> TranscriptInfo | None:
        try:
            with self._path(session).open("rb") as file:
                found = _decode(file.readline())
                stat = os.fstat(file.fileno())
        except (FileNotFoundError, NoTranscript, msgspec.DecodeError):
            return None
        if found.get("type") != HEADER:
            return None
        name = found.get("name")
        return TranscriptInfo(
            session,
            None if name is None else str(name),
            str(found.get("runtime")),
            str(found.get("created")),
            stat.st_mtime,
            stat.st_size + self._rotated_bytes(session),
        )

    def _rotated_bytes(self, session: str) -> int:
        try:
            return self._path(session, ".1").stat().st_size
        except FileNotFoundError:
            return 0

    def list(self) -> Sequence[TranscriptInfo]:
        names = [path.name.removesuffix(".jsonl") for path in self._directory.glob("*.jsonl")]
        found = [info for name in names if "." not in name and (info := self.get(name)) is not None]
        return sorted(found, key=lambda info: info.updated, reverse=True)

    def find(self, name: str) -> Sequence[TranscriptInfo]:
        return [info for info in self.list() if name in (info.name, info.session)]

    def latest(self) -> TranscriptInfo | None:
        return next(iter(self.list()), None)

    def search(self, text: str, session: str | None = None) -> Iterator[Entry]:
        wanted = text.casefold()
        for info in self.list():
            if session in (None, info.session):
                yield from (entry for entry in self.load(info.session) if wanted in searchable_text(entry).casefold())

    # --- keeping within bounds ---

    def lock(self, session: str) -> Callable[[], None] | None:
        try:
            fd = os.open(self._path(session), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NoTranscript(session) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return lambda: os.close(fd)

    def remove(self, session: str) -> bool:
        release = self.lock(session)
        if release is None:
            return False
        for part in (".1", ""):
            self._path(session, part).unlink(missing_ok=True)
        release()
        return True

    def prune(self, oldest: float, most_bytes: int, keep: frozenset[str]) -> int:
        pruned, total = 0, 0
        for info in self.list():  # the newest first
            total += info.bytes
            if info.session in keep or (info.updated >= oldest and total <= most_bytes):
                continue
            if self.remove(info.session):
                total -= info.bytes
                pruned += 1
        return pruned

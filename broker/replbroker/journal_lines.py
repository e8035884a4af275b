"""The journal's file as text: a header and records, each a line of JSON behind its checksum.

A line that is cut off at the end was never acted on; one that is damaged elsewhere is dropped and counted.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from zlib import crc32

import msgspec

from replbroker.core.records import (
    KeyHistory,
    Record,
    SavedEval,
    SavedProgress,
    SavedState,
    SessionRecord,
    WorkerRecord,
)

VERSION = 3
_SINCE_JOURNALS = 2  # before, it was a list of sessions
_MAX_BYTES = 1 << 30  # no broker writes a longer file
_MAX_EPOCH = 2**31  # no broker reaches it; epochs counted on from here still fit the wire
_CHECKSUM_CHARS = 9  # eight digits and a space


class JournalHeader(msgspec.Struct):
    """The first line."""

    version: int
    pid: int
    floor: int
    generation: int = 0
    private_dir: str | None = None
    last_worker: int = 0
    keys: KeyHistory = KeyHistory()
    boot: str = ""


_NO_KEYS = KeyHistory()
_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(JournalHeader).decode
_decode_record = msgspec.json.Decoder(Record).decode
_decode_old_record = msgspec.json.Decoder(SessionRecord).decode


class CorruptJournal(Exception):
    """The file exists, and cannot be read as a journal."""


class NewerJournal(Exception):
    """A newer version has written the file."""


class JournalState:
    """The sum of the lines of a journal."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str, str], SessionRecord] = {}
        self._evals: dict[tuple[str, int], SavedEval] = {}
        self._workers: dict[int, WorkerRecord] = {}
        self._last_worker = 0
        self._dropped: dict[str, float] = {}  # by identity, when its latest key without an eval was put

    def add(self, record: Record) -> None:
        """Take in the next record."""
        if isinstance(record, SessionRecord):
            if not 0 <= record.epoch < _MAX_EPOCH:
                raise CorruptJournal("an epoch out of bounds")
            key = (record.owner, record.name or record.id, record.scope)
            self._sessions.pop(key, None)
            self._sessions[key] = record
        elif isinstance(record, SavedEval):
            self._evals[record.session, record.eval_id] = record
        elif isinstance(record, SavedProgress):
            known = self._evals.get((record.session, record.eval_id))
            if known is not None:
                self._evals[record.session, record.eval_id] = msgspec.structs.replace(known, progress=record.progress)
                if known.progress.has_key and not record.progress.has_key:
                    before = self._dropped.get(known.identity, known.submitted_at)
                    self._dropped[known.identity] = max(before, known.submitted_at)
        elif record.handle or record.token:
            self._workers[record.worker] = record
            self._last_worker = max(self._last_worker, record.worker)
        else:
            self._workers.pop(record.worker, None)

    def build(
        self,
        floor: int = 0,
        generation: int = 0,
        private_dir: str | None = None,
        last_worker: int = 0,
        keys: KeyHistory = _NO_KEYS,
    ) -> SavedState:
        """Return what counts at the end, with the fields of the header.

        Of the evals of closed sessions only those with a key count.
        """
        open_ids = {each.id for each in self._sessions.values() if each.open}
        both = (keys.dropped, self._dropped)
        dropped = {who: max(each.get(who, 0.0) for each in both) for who in {**keys.dropped, **self._dropped}}
        return SavedState(
            floor,
            list(self._sessions.values()),
            [each for each in self._evals.values() if each.session in open_ids or each.progress.has_key],
            list(self._workers.values()),
            max(self._last_worker, last_worker),
            generation,
            private_dir,
            KeyHistory(keys.instances, dropped),
        )


def _read_file(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_size > _MAX_BYTES:
            raise CorruptJournal("not a file of this user, or too long")
        return file.read(_MAX_BYTES)


def _unwrap(line: bytes) -> bytes:
    """Return the JSON of a line. Raises ValueError when its checksum is another one."""
    text = line[_CHECKSUM_CHARS:]
    if int(line[: _CHECKSUM_CHARS - 1], 16) != crc32(text) or line[_CHECKSUM_CHARS - 1 : _CHECKSUM_CHARS] != b" ":
        raise ValueError("damaged")
    return text


def wrap(text: bytes) -> bytes:
    """Return a line with this JSON."""
    return b"%08x %b\n" % (crc32(text), text)


def encode_line(record: Record | JournalHeader) -> bytes:
    """Return the line of a record."""
    return wrap(_encode(record))


def _read_old(header: JournalHeader, lines: list[bytes]) -> SavedState:
    """Read a list of sessions, as brokers wrote it that kept none: each open session in it is lost."""
    state = JournalState()
    for line in lines:
        state.add(_decode_old_record(line))
    return state.build(header.floor)


def read_journal(path: Path) -> tuple[SavedState, int]:
    """Read a journal.

    Returns:
        What it says, and the number of damaged lines that were dropped.

    Raises:
        OSError: The file cannot be read.
        CorruptJournal: It is not a journal of this user.
        NewerJournal: It is that of a newer version.
    """
    first, *lines = _read_file(path).split(b"\n")
    try:
        if first.startswith(b"{"):
            header = _decode_header(first)
            if header.version != 1 or lines[-1:] != [b""] or not 0 <= header.floor < _MAX_EPOCH:
                raise CorruptJournal(f"of version {header.version}, and not whole")
            return _read_old(header, lines[:-1]), 0
        header = _decode_header(_unwrap(first))
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptJournal(str(error)) from None
    if header.version > VERSION:
        raise NewerJournal(f"{path} has version {header.version}, and this replctl reads version {VERSION}")
    if header.version < _SINCE_JOURNALS:
        raise CorruptJournal(f"of version {header.version}")
    if not 0 <= header.floor < _MAX_EPOCH:
        raise CorruptJournal("an epoch out of bounds")
    if not lines:
        raise CorruptJournal("its header is cut off")
    state, damaged = JournalState(), 0
    for line in lines[:-1]:  # after the last newline there is nothing, or a line that was cut off
        try:
            state.add(_decode_record(_unwrap(line)))
        except (ValueError, msgspec.MsgspecError):
            damaged += 1
    saved = state.build(header.floor, header.generation, header.private_dir, header.last_worker, header.keys)
    return saved._replace(boot=header.boot), damaged


def open_sessions(path: Path) -> set[str]:
    """Return the ids of the sessions that are open by a journal; none where it cannot be read."""
    try:
        return {each.id for each in read_journal(path)[0].sessions if each.open}
    except (OSError, CorruptJournal, NewerJournal):
        return set()

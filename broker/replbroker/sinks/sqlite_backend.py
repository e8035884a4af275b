"""Transcripts in one SQLite file with a full-text index; in WAL mode readers do not block the writer."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from replbroker.sinks.transcript_backend import (
    CorruptEntry,
    Entry,
    NoTranscript,
    TranscriptExists,
    TranscriptInfo,
    searchable_text,
)
from replwire.events import BROKER
from replwire.private_directories import make_private_directory

_FILE = "transcripts.db"
_BUSY_S = 5.0
_MIN_INDEXED_CHARS = 3  # the shortest text that the index finds
_ID = re.compile(r"[A-Za-z0-9_-]{1,256}\Z")
_decode = msgspec.json.Decoder(dict[str, object]).decode
_SCHEMA = """
create table if not exists transcripts (
    session text primary key, name text, runtime text not null, created text not null, updated real not null,
    bytes integer not null default 0
) without rowid;
create table if not exists entries (
    n integer primary key, session text not null, seq integer not null, body blob not null
);
create index if not exists entries_by_session on entries (session, n);
create virtual table if not exists texts using fts5 (text, tokenize = 'trigram');
"""


class SqliteBackend:
    """Transcripts in one file of a directory, for one thread; see `TranscriptBackend`.

    Args:
        directory: The directory; created when it is needed.
        max_session_bytes: Bound on one session's transcript, in bytes.
    """

    def __init__(self, directory: Path, max_session_bytes: int) -> None:
        self._directory = directory
        self._max_session_bytes = max_session_bytes
        self._connection: sqlite3.Connection | None = None
        self._locks: dict[str, Callable[[], None]] = {}

    @staticmethod
    def exists(directory: Path) -> bool:
        """Return whether this directory has the file."""
        return (directory / _FILE).exists()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            make_private_directory(self._directory)
            os.close(os.open(self._directory / _FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            held = sqlite3.connect(self._directory / _FILE, timeout=_BUSY_S, check_same_thread=False)
            try:
                held.execute("pragma journal_mode = wal")
                held.execute("pragma synchronous = normal")
                held.executescript(_SCHEMA)
            except sqlite3.Error as error:
                held.close()
                raise OSError(f"{_FILE}: {error}") from None
            self._connection = held
        return self._connection

    def _transaction(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run a transaction. Raises OSError."""
        try:
            with self._db as db:
                work(db)
        except sqlite3.Error as error:
            raise OSError(f"{_FILE}: {error}") from None

    def _rows(self, query: str, *values: object) -> Sequence[tuple[object, ...]]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise OSError(f"{_FILE}: {error}") from None

    # --- writing ---

    def create(self, info: TranscriptInfo) -> None:
        if not _ID.match(info.session):
            raise NoTranscript(info.session)
        if self.get(info.session) is not None:
            raise TranscriptExists(info.session)
        row = (info.session, info.name, info.runtime, info.created, time.time())
        self._transaction(lambda db: _discard(db.execute("insert into transcripts values (?, ?, ?, ?, ?, 0)", row)))
        self._acquire_lock(info.session)

    def open(self, info: TranscriptInfo) -> None:
        if info.session not in self._locks:
            try:
                self.open_existing(info.session)
            except NoTranscript:
                self.create(info)

    def open_existing(self, session: str) -> TranscriptInfo:
        info = self.get(session)
        if info is None:
            raise NoTranscript(session)
        if session not in self._locks:
            self._acquire_lock(session)
        return info

    def _acquire_lock(self, session: str) -> None:
        if session == BROKER:  # shared by all brokers of a user
            self._locks[session] = lambda: None
            return
        release = self.lock(session)
        if release is None:
            raise BlockingIOError(f"{session}: another process writes it")
        self._locks[session] = release

    def append(self, session: str, entries: Sequence[bytes]) -> None:
        if session not in self._locks:
            self.open_existing(session)
        rows = [(entry, body) for body in entries if (entry := _parse_entry(body)) is not None]

        def work(db: sqlite3.Connection) -> None:
            for entry, body in rows:
                seq = entry.get("seq", 0)
                at = db.execute("insert into entries (session, seq, body) values (?, ?, ?)", (session, seq, body))
                if text := searchable_text(entry):
                    db.execute("insert into texts (rowid, text) values (?, ?)", (at.lastrowid, text.casefold()))
            size = sum(len(body) for _, body in rows)
            db.execute(
                "update transcripts set updated = ?, bytes = bytes + ? where session = ?", (time.time(), size, session)
            )
            self._truncate(db, session)

        self._transaction(work)

    def _truncate(self, db: sqlite3.Connection, session: str) -> None:
        """Delete the older half of a transcript that has grown beyond its bound."""
        (size,) = db.execute("select bytes from transcripts where session = ?", (session,)).fetchone()
        if size <= self._max_session_bytes:
            return
        left = size
        for n, length in db.execute("select n, length(body) from entries where session = ? order by n", (session,)):
            if left <= self._max_session_bytes // 2:
                break
            db.execute("delete from texts where rowid = ?", (n,))
            db.execute("delete from entries where n = ?", (n,))
            left -= length
        db.execute("update transcripts set bytes = ? where session = ?", (left, session))

    def close(self, session: str) -> None:
        release = self._locks.pop(session, None)
        if release is not None:
            release()

    def close_all(self) -> None:
        for session in tuple(self._locks):
            self.close(session)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- reading ---

    def load(self, session: str, *, strict: bool = False) -> Iterator[Entry]:
        return self._entries(session, -1, strict)

    def entries_since(self, session: str, seq: int) -> Iterator[Entry]:
        return self._entries(session, seq, strict=False)

    def _entries(self, session: str, seq: int, strict: bool) -> Iterator[Entry]:
        if self.get(session) is None:
            raise NoTranscript(session)
        for (body,) in self._rows("select body from entries where session = ? and seq > ? order by n", session, seq):
            entry = _parse_entry(body)
            if entry is None and strict:
                raise CorruptEntry("not an entry")
            if entry is not None:
                yield entry

    def _infos(self, where: str = "", *values: object) -> Sequence[TranscriptInfo]:
        query = f"select session, name, runtime, created, updated, bytes from transcripts {where} order by updated desc"
        return [TranscriptInfo(*row) for row in self._rows(query, *values)]  # type: ignore[arg-type]

    def get(self, session: str) -> TranscriptInfo | None:
        return next(iter(self._infos("where session = ?", session)), None)

    def find(self, name: str) -> Sequence[TranscriptInfo]:
        return self._infos("where name = ? or session = ?", name, name)

    def list(self) -> Sequence[TranscriptInfo]:
        return self._infos()

    def latest(self) -> TranscriptInfo | None:
        return next(iter(self._infos()), None)

    def search(self, text: str, session: str | None = None) -> Iterator[Entry]:
        query, text = "select body, session from entries join texts on texts.rowid = entries.n where ", text.casefold()
        if len(text) >= _MIN_INDEXED_CHARS:
            rows = self._rows(query + "texts match ? order by n", '"' + text.replace('"', '""') + '"')
        else:
            rows = self._rows(query + "instr(text, ?) order by n", text)
        for body, entry_session in rows:
            if session in (None, entry_session) and (entry := _parse_entry(body)) is not None:
                yield entry

    # --- keeping within bounds ---

    def lock(self, session: str) -> Callable[[], None] | None:
        if not _ID.match(session) or self.get(session) is None:
            raise NoTranscript(session)
        path = self._directory / f"{session}.lock"
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None

        def release() -> None:
            path.unlink(missing_ok=True)
            os.close(fd)

        return release

    def remove(self, session: str) -> bool:
        release = self.lock(session)
        if release is None:
            return False
        self._transaction(lambda db: _remove(db, session))
        release()
        return True

    def prune(self, oldest: float, most_bytes: int, keep: frozenset[str]) -> int:
        self._remove_stale_locks()
        pruned, total = 0, 0
        for info in self.list():
            total += info.bytes
            if info.session in keep or info.session in self._locks or (info.updated >= oldest and total <= most_bytes):
                continue
            if self.remove(info.session):
                total -= info.bytes
                pruned += 1
        return pruned

    def _remove_stale_locks(self) -> None:
        """Delete the lock files of killed brokers; they lock nothing any more."""
        for path in self._directory.glob("*.lock"):
            try:
                release = None if path.stem in self._locks else self.lock(path.stem)
            except NoTranscript:
                path.unlink(missing_ok=True)
                continue
            if release is not None:
                release()


def _remove(db: sqlite3.Connection, session: str) -> None:
    db.execute("delete from texts where rowid in (select n from entries where session = ?)", (session,))
    db.execute("delete from entries where session = ?", (session,))
    db.execute("delete from transcripts where session = ?", (session,))


def _parse_entry(body: object) -> Entry | None:
    try:
        return _decode(body)  # type: ignore[arg-type]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _discard(_: object) -> None:
    """Discard the value of a lambda's expression."""

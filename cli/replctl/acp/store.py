"""What outlives this process: one small file a session, and its transcript. Both are the user's alone (0600).

A transcript holds what was said, bounded. It is no snapshot: reading it brings no variable back.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from replctl.acp.modes import Mode
from replwire.private_directories import make_private_directory

MAX_RECORDS = 1000  # sessions that are remembered; the longest unused go first
MAX_TRANSCRIPT = 1024 * 1024  # bytes of one file; there are two, and the older one is dropped when a third is begun
MAX_TEXT = 64 * 1024  # characters of one text in it
_VERSION = 1


class AcpSessionRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An ACP session. `session` is the broker's session that was chosen, None for its own."""

    v: int = _VERSION
    id: str
    cwd: str
    created: str
    mode: Mode
    runtime: str
    session: str | None = None
    title: str | None = None


class StoredTurn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A prompt in the transcript: once when it begins, and again with all the rest when it has ended."""

    turn: str
    at: str
    prompt: str
    stop: str | None = None  # why it ended; None when this is its beginning
    tool: dict[str, Any] | None = None  # the tool call as it stood at the end
    messages: list[str] = []
    permission: str | None = None  # what was decided, when it had to be asked
    home: str | None = None  # the broker's id of the session that it ran in
    epoch: int | None = None
    eval_id: int | None = None


class UnreadableRecord(Exception):
    """A record is there and cannot be read: its mode is not known, so it is not opened."""


_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(AcpSessionRecord).decode
_decode_turn = msgspec.json.Decoder(StoredTurn).decode


def new_id() -> str:
    """An id that nobody can guess, and that is a legal name for a session of the broker."""
    return f"acp-{secrets.token_hex(16)}"


def now() -> str:
    """This moment, as ACP writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def truncate_middle(text: str, most: int = MAX_TEXT) -> str:
    """Text within a bound: its head and its tail, and how much is missing between them."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 4
    return f"{text[:head]}\n…[{len(text) - head - tail} characters are left out]…\n{text[-tail:]}"


class AcpSessionStore:
    """The folder of all of them. Every method may raise OSError."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def save(self, record: AcpSessionRecord) -> None:
        """Write a session's record; a reader sees the old one or the new one, never half of it."""
        make_private_directory(self._folder)  # a broker takes no state folder that others enter
        path = self._record(record.id)
        fresh = f"{path}.{os.getpid()}"  # its own name: another adapter may save the same session
        _write(fresh, _encode(record), os.O_TRUNC)
        os.replace(fresh, path)

    def get(self, session_id: str) -> AcpSessionRecord | None:
        """The record of this id; None when there is none. Raises Unreadable."""
        try:
            with open(self._record(session_id), "rb") as file:
                return _decode_record(file.read())
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnreadableRecord(str(error)) from None

    def delete(self, session_id: str) -> None:
        """Forget a session and its transcript; one that is not there is no error."""
        for path in (self._record(session_id), *self._transcripts(session_id)):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def list_newest(self) -> list[tuple[str, float]]:
        """Ids and when each was last used (Unix seconds), the newest first."""
        used: dict[str, float] = {}
        known = set()
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    stem, _, rest = entry.name.partition(".")
                    used[stem] = max(used.get(stem, 0.0), entry.stat(follow_symlinks=False).st_mtime)
                    if rest == "json":
                        known.add(stem)
        except FileNotFoundError:
            return []
        return sorted(((name, used[name]) for name in known), key=lambda pair: (-pair[1], pair[0]))

    def prune(self, keep: set[str]) -> None:
        """Forget the longest unused beyond the bound, but none of `keep`."""
        for session_id, _ in self.list_newest()[MAX_RECORDS:]:
            if session_id not in keep:
                self.delete(session_id)

    def append(self, session_id: str, turn: StoredTurn) -> None:
        """Add to a transcript with one write, so that a crash can tear the last line at most."""
        path, older = self._transcripts(session_id)
        try:
            if os.path.getsize(path) > MAX_TRANSCRIPT:
                os.replace(path, older)
        except FileNotFoundError:
            pass
        # The newline stands first: behind a torn line it keeps this one whole.
        _write(path, b"\n" + _encode(turn), os.O_APPEND)

    def turns(self, session_id: str) -> list[StoredTurn]:
        """The turns in the order they began, each as far as it is known. Lines that cannot be read are left out."""
        turns: dict[str, StoredTurn] = {}
        for line in self._lines(session_id):
            try:
                turn = _decode_turn(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            if turn.turn not in turns or turn.stop is not None:
                turns[turn.turn] = turn
        return list(turns.values())

    def _lines(self, session_id: str) -> Iterator[bytes]:
        path, older = self._transcripts(session_id)
        for each in (older, path):
            try:
                with open(each, "rb") as file:
                    yield from filter(None, file.read().split(b"\n"))
            except FileNotFoundError:
                continue

    def _record(self, session_id: str) -> str:
        return os.path.join(self._folder, f"{session_id}.json")

    def _transcripts(self, session_id: str) -> tuple[str, str]:
        base = os.path.join(self._folder, session_id)
        return base + ".jsonl", base + ".old.jsonl"


def _write(path: str, data: bytes, how: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | how
    file = os.open(path, flags, 0o600)
    try:
        if os.write(file, data) != len(data):
            raise OSError(0, "the disk took only a part", path)
    finally:
        os.close(file)


def copy_record(record: AcpSessionRecord) -> AcpSessionRecord:
    """The same record, to be changed."""
    return msgspec.structs.replace(record)

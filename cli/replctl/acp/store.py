"""Persistent ACP sessions: one small file per session and its transcript, readable by the user only (0600).

A transcript holds the conversation, bounded in size. Loading a transcript does not restore variables.
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

MAX_RECORDS = 1000  # stored sessions; the least recently used are deleted first
MAX_TRANSCRIPT = 1024 * 1024  # bytes of one file; the current one and one older file are kept
MAX_TEXT = 64 * 1024  # characters of one text
_VERSION = 1


class AcpSessionRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A stored ACP session. `session` is the selected REPL session, or None for the ACP session's own."""

    v: int = _VERSION
    id: str
    cwd: str
    created: str
    mode: Mode
    runtime: str
    session: str | None = None
    title: str | None = None


class StoredTurn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A prompt in the transcript: written once when the turn begins and again, complete, when the turn ends."""

    turn: str
    at: str
    prompt: str
    stop: str | None = None  # stop reason; None at the beginning of the turn
    tool: dict[str, Any] | None = None  # final state of the tool call
    messages: list[str] = []
    permission: str | None = None  # decision, if permission was requested
    home: str | None = None  # id of the REPL session it ran in
    epoch: int | None = None
    eval_id: int | None = None


class UnreadableRecord(Exception):
    """The record exists but cannot be read. Its mode is unknown, so the session is not opened."""


_encode = msgspec.json.Encoder().encode
_decode_record = msgspec.json.Decoder(AcpSessionRecord).decode
_decode_turn = msgspec.json.Decoder(StoredTurn).decode


def new_id() -> str:
    """Return an unguessable id that is also a valid REPL session name."""
    return f"acp-{secrets.token_hex(16)}"


def now() -> str:
    """Return the current time in ACP's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def truncate_middle(text: str, most: int = MAX_TEXT) -> str:
    """Return the text with its middle left out beyond `most` characters; the gap says how much is missing."""
    if len(text) <= most:
        return text
    head, tail = most * 3 // 4, most // 4
    return f"{text[:head]}\n…[{len(text) - head - tail} characters left out]…\n{text[-tail:]}"


class AcpSessionStore:
    """Directory of stored sessions. Every method may raise OSError."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def save(self, record: AcpSessionRecord) -> None:
        """Write a session's record atomically."""
        make_private_directory(self._directory)  # a broker rejects a state directory that others can enter
        path = self._record(record.id)
        fresh = f"{path}.{os.getpid()}"  # a unique name: another adapter may save the same session
        _write(fresh, _encode(record), os.O_TRUNC)
        os.replace(fresh, path)

    def get(self, session_id: str) -> AcpSessionRecord | None:
        """Return the record with this id, or None. Raises UnreadableRecord."""
        try:
            with open(self._record(session_id), "rb") as file:
                return _decode_record(file.read())
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnreadableRecord(str(error)) from None

    def delete(self, session_id: str) -> None:
        """Delete a session's record and transcript, if they exist."""
        for path in (self._record(session_id), *self._transcripts(session_id)):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def list_newest(self) -> list[tuple[str, float]]:
        """Return ids with the time of last use (Unix seconds), newest first."""
        used: dict[str, float] = {}
        known = set()
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    stem, _, rest = entry.name.partition(".")
                    used[stem] = max(used.get(stem, 0.0), entry.stat(follow_symlinks=False).st_mtime)
                    if rest == "json":
                        known.add(stem)
        except FileNotFoundError:
            return []
        return sorted(((name, used[name]) for name in known), key=lambda pair: (-pair[1], pair[0]))

    def prune(self, keep: set[str]) -> None:
        """Delete the least recently used sessions beyond the limit, except those in `keep`."""
        for session_id, _ in self.list_newest()[MAX_RECORDS:]:
            if session_id not in keep:
                self.delete(session_id)

    def append(self, session_id: str, turn: StoredTurn) -> None:
        """Append to a transcript with a single write, so a crash can damage at most the last line."""
        path, older = self._transcripts(session_id)
        try:
            if os.path.getsize(path) > MAX_TRANSCRIPT:
                os.replace(path, older)
        except FileNotFoundError:
            pass
        # The newline comes first, so a damaged line before does not damage this one.
        _write(path, b"\n" + _encode(turn), os.O_APPEND)

    def turns(self, session_id: str) -> list[StoredTurn]:
        """Return the turns in starting order, each in its latest version. Unreadable lines are skipped."""
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
        return os.path.join(self._directory, f"{session_id}.json")

    def _transcripts(self, session_id: str) -> tuple[str, str]:
        base = os.path.join(self._directory, session_id)
        return base + ".jsonl", base + ".old.jsonl"


def _write(path: str, data: bytes, how: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | how
    file = os.open(path, flags, 0o600)
    try:
        if os.write(file, data) != len(data):
            raise OSError(0, "only part of the data was written", path)
    finally:
        os.close(file)


def copy_record(record: AcpSessionRecord) -> AcpSessionRecord:
    """Return a copy of the record, to be changed."""
    return msgspec.structs.replace(record)

"""Flows that save a session in a file and open one from it, part by part. They read and write the file themselves."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from replctl.client import flows
from replctl.client.errors import ReplError
from replwire.replies import Reply
from replwire.snapshot_file import (
    MAGIC,
    MAX_HEADER_BYTES,
    SnapshotChecksum,
    SnapshotHeader,
    SnapshotRefused,
    decode_header,
)

_ENVELOPE_BYTES = 4096  # of a message, besides its part


def save_session(session: str, file: str | os.PathLike[str]) -> flows.Flow[Reply]:
    """Save a session's variables in a file, which is complete or not there. Raises ReplError or OSError."""
    with _replace_file(Path(file)) as out:
        reply: Reply = yield from flows.request("save", {"session": session})
        checksum, offset = SnapshotChecksum(), 0
        while offset < (reply.bytes or 0):
            fields = {"session": reply.session, "snapshot": reply.snapshot, "offset": offset}
            part = (yield from flows.request_patiently("get-snapshot", fields)).data or b""
            if not part:
                break
            out.write(part)
            checksum.update(part)
            offset += len(part)
        if not checksum.is_valid:
            raise ReplError("snapshot-failed", "the snapshot was damaged on its way: save the session again")
    return reply


def open_saved(file: str | os.PathLike[str], fields: dict[str, Any]) -> flows.Flow[Reply]:
    """Open a session with the variables of a file. Raises ReplError or OSError.

    Args:
        file: The file.
        fields: Fields of `new-session`.
    """
    with open(file, "rb", opener=_open_regular) as source:
        limits = (yield from flows.request("describe", {})).limits or {}
        room = (limits["max-message-bytes"] - _ENVELOPE_BYTES) * 3 // 4  # base64
        most, size = min(limits["max-part-bytes"], room), os.fstat(source.fileno()).st_size
        snapshot, offset, is_last = None, 0, False
        while not is_last:
            part = source.read(most)
            is_last = not part or offset + len(part) >= size
            put = {"snapshot": snapshot, "offset": offset, "data": part, "last": is_last}
            snapshot = (yield from flows.request_patiently("put-snapshot", put)).snapshot
            offset += len(part)
    return (yield from flows.request("new-session", {**fields, "snapshot": snapshot}))


def read_header(file: str | os.PathLike[str]) -> SnapshotHeader:
    """Return the description of a saved session. Raises OSError, or ReplError if the file is none."""
    with open(file, "rb", opener=_open_regular) as source:
        try:
            begin = source.read(len(MAGIC))  # of other files no more is read
            return decode_header(begin + source.read(MAX_HEADER_BYTES if begin == MAGIC else 0))[0]
        except SnapshotRefused as refused:
            raise ReplError("snapshot-failed", f"the snapshot cannot be used: {refused}") from None


def list_saved(directory: str) -> list[tuple[str, SnapshotHeader]]:
    """Return the saved sessions in a directory, by name of their files. Raises OSError if it cannot be read."""
    found = []
    for name in sorted(os.listdir(directory)):
        with suppress(OSError, ReplError):
            found.append((name, read_header(f"{directory}/{name}")))
    return found


def _open_regular(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


@contextmanager
def _replace_file(path: Path) -> Generator[IO[bytes]]:
    """Write a file for its owner alone, and put it in place when everything is written."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(fd, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)

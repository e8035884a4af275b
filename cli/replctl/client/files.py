"""Flows that put a local file into a session and fetch one from it, part by part. They do the local I/O themselves.

A transfer that was cut off goes on where it ended: the session has kept the parts of a file that was put, and a hidden
file beside the target those of one that was fetched. SHA-256 of the whole file proves that the parts belong together.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from replctl.client import flows
from replctl.client.errors import ReplError
from replwire.replies import Reply

OnProgress = Callable[[int, int], None]  # bytes moved, and of the whole file
LocalPath = str | os.PathLike[str]

_SMALL_BYTES = 32 * 1024  # sent in one request without asking for the broker's limits
_ENVELOPE_BYTES = 16 * 1024  # of a message, besides its part: two paths of 4 KiB


def put_file(source: LocalPath | bytes, fields: dict[str, Any], on_progress: OnProgress | None) -> flows.Flow[Reply]:
    """Write a file in a session.

    Args:
        source: A local file, or the content.
        fields: Fields of `put-file`: the session, and the file there.
        on_progress: Called after each part.

    Raises:
        OSError: The local file cannot be read.
        ReplError: The broker refused, or the file changed meanwhile.
    """
    with _open_source(source) as file:
        size, whole = _measure(file)
        if size <= _SMALL_BYTES:
            return (yield from _put(fields, file.read(_SMALL_BYTES)))
        fields = {**fields, "sha256": whole}
        most = yield from _part_bytes()
        arrived = (yield from _put(fields, b"", final=False)).offset or 0
        at = arrived if arrived <= size else 0
        while True:
            file.seek(at)
            data = file.read(most)
            is_last = not data or at + len(data) >= size
            reply: Reply = yield from _put(fields, data, offset=at, final=is_last)
            at += len(data)
            if on_progress is not None:
                on_progress(at, size)
            if is_last:
                return reply


def get_file(fields: dict[str, Any], target: LocalPath | None, on_progress: OnProgress | None) -> flows.Flow[Reply]:
    """Read a file of a session.

    Args:
        fields: Fields of `get-file`: the session, and the file there.
        target: A local file to write; None: `data` of the reply has the content.
        on_progress: Called after each part.

    Raises:
        OSError: The local file cannot be written.
        ReplError: The broker refused, or the file changed meanwhile.
    """
    if target is None:
        return (yield from _get_content(fields))
    path = Path(target)
    parts = path.with_name(f".{path.name}.part")
    for _ in range(2):
        resumed = parts.exists()
        if (reply := (yield from _get_into(fields, parts, on_progress))) is not None:
            with suppress(FileNotFoundError):
                parts.chmod(stat.S_IMODE(path.stat().st_mode) & 0o777)
            os.replace(parts, path)
            return reply
        if not resumed:
            break
    raise ReplError("io-error", f"{fields['file']} changed while it was read: try again")


def _get_into(fields: dict[str, Any], parts: Path, on_progress: OnProgress | None) -> flows.Flow[Reply | None]:
    """Add what is missing to a file with parts; None if they do not belong together, and are removed."""
    with open(parts, "a+b", opener=_open_parts) as file:
        arrived = file.seek(0, os.SEEK_END)
        try:
            reply: Reply = yield from _get_rest(fields, file, arrived, on_progress)
            if reply.sha256 == _measure(file)[1]:
                return reply
        except ReplError as error:
            if not file.tell():
                parts.unlink()
            if not arrived or error.code != "invalid-request":  # the file is shorter than what has arrived
                raise
    parts.unlink(missing_ok=True)
    return None


def _get_rest(
    fields: dict[str, Any], file: io.BufferedIOBase, at: int, on_progress: OnProgress | None
) -> flows.Flow[Reply]:
    while True:
        reply: Reply = yield from flows.request_patiently("get-file", {**fields, "offset": at})
        file.write(reply.data or b"")
        file.flush()
        at += len(reply.data or b"")
        if on_progress is not None:
            on_progress(at, reply.bytes or at)
        if reply.sha256 is not None:
            return reply


def _get_content(fields: dict[str, Any]) -> flows.Flow[Reply]:
    data = bytearray()
    while True:
        reply: Reply = yield from flows.request_patiently("get-file", {**fields, "offset": len(data)})
        data += reply.data or b""
        if reply.sha256 is not None:
            break
    if reply.sha256 != hashlib.sha256(data).hexdigest():
        raise ReplError("io-error", f"{fields['file']} changed while it was read: try again")
    reply.data = bytes(data)
    return reply


def _put(fields: dict[str, Any], data: bytes, *, offset: int = 0, final: bool = True) -> flows.Flow[Reply]:
    more = {"data": data, "offset": offset or None, "final": None if final else False}
    return (yield from flows.request_patiently("put-file", {**fields, **more}))


def _part_bytes() -> flows.Flow[int]:
    limits = (yield from flows.request("describe", {})).limits or {}
    room = (limits["max-message-bytes"] - _ENVELOPE_BYTES) * 3 // 4  # base64
    return int(max(1, min(limits["max-part-bytes"], room)))


@contextmanager
def _open_source(source: LocalPath | bytes) -> Generator[io.BufferedIOBase]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
        return
    with open(source, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ReplError("invalid-request", f"{os.fspath(source)} is not a regular file")
        yield file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _open_parts(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, 0o666)


def _measure(file: io.BufferedIOBase) -> tuple[int, str]:
    """Return the size and SHA-256 of an open file, and go back to its start."""
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size, digest

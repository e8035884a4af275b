"""Snapshots that are saved: written by the interpreter into a file without a name, and sent to a client in parts."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO

import msgspec

from replwire.deadlines import Deadline, Deadlines
from replwire.faults import RequestError
from replwire.limits import Limits
from replwire.link import AssignBody
from replwire.ops import GetSnapshot
from replwire.private_directories import make_private_directory
from replwire.replies import Reply
from replwire.snapshot_file import CHECKSUM_BYTES, SnapshotHeader, checksum_line, encode_header
from replworker.evals import EvalRecord
from replworker.interpreter import Interpreter
from replworker.reply_sender import ReplySender
from replworker.runtimes import frames

_decode_get = msgspec.json.Decoder(GetSnapshot).decode


class SavedSnapshots:
    """The one snapshot of a session that a client may fetch. `directory` is where its file is created."""

    def __init__(
        self, interpreter: Interpreter, replies: ReplySender, timers: Deadlines, directory: str, dill: str
    ) -> None:
        self._interpreter = interpreter
        self._replies = replies
        self._timers = timers
        self._directory = directory
        self._dill = dill
        self._latest: _Snapshot | None = None
        self._idle_timer: Deadline | None = None
        self._idle_s = 0.0

    def save(
        self, record: EvalRecord, assignment: AssignBody, limits: Limits, ended: Callable[[Reply | str], None]
    ) -> int | None:
        """Have the interpreter write a snapshot.

        Args:
            record: The request.
            assignment: The session.
            limits: Its limits.
            ended: Called with the reply, or with an error message.

        Returns:
            The request number, if the interpreter was asked.
        """
        if not self._interpreter.supports("dump"):
            ended("sessions of this runtime cannot be saved")
            return None
        self._idle_s, most = limits.transfer_idle_ms / 1000, limits.max_snapshot_bytes
        try:
            file = self._create_file()
        except OSError as error:
            ended(f"cannot create a file for the snapshot: {error.strerror}")
            return None

        def dumped(event: frames.FrameEvent) -> None:
            assert isinstance(event, frames.DumpedFrame)
            error = event.error or _store(file, event.data, most)
            if error is not None:
                file.close()
                ended(f"the session cannot be saved: {error}")
                return
            self.drop()
            self._latest = _Snapshot(self._build_header(assignment, event, file), file)
            self._restart_timer()
            ended(self._build_reply(record, assignment, event, self._latest))

        number = self._interpreter.next_number()
        self._interpreter.request(frames.DumpFrame(number, most, self._dill), dumped, file.fileno())
        return number

    def _create_file(self) -> IO[bytes]:
        make_private_directory(self._directory)
        path = f"{self._directory}/{os.getpid()}-{secrets.token_hex(16)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        return os.fdopen(fd, "r+b", buffering=0)

    def _build_header(self, assignment: AssignBody, event: frames.DumpedFrame, file: IO[bytes]) -> SnapshotHeader:
        ready = self._interpreter.ready
        assert ready is not None
        return SnapshotHeader(
            runtime=ready.runtime,
            runtime_version=ready.version,
            saved_at=datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
            session=assignment.name,
            count=event.count,
            bytes=os.fstat(file.fileno()).st_size,
            skipped=event.skipped,
        )

    def _build_reply(
        self, record: EvalRecord, assignment: AssignBody, event: frames.DumpedFrame, snapshot: _Snapshot
    ) -> Reply:
        return Reply(
            id=record.request_id,
            status=["done"],
            snapshot=snapshot.id,
            session=assignment.session,
            name=assignment.name,
            epoch=self._replies.epoch,
            state="kept",
            eval_id=record.eval_id,
            duration_ms=round((time.monotonic() - record.started) * 1000, 3),
            count=event.count,
            bytes=snapshot.size,
            skipped=event.skipped,
        )

    def _restart_timer(self) -> None:
        self._timers.cancel(self._idle_timer)
        self._idle_timer = self._timers.call_at(time.monotonic() + self._idle_s, lambda _: self.drop())

    def drop(self) -> None:
        """Drop the snapshot, if there is one."""
        self._timers.cancel(self._idle_timer)
        if self._latest is not None:
            self._latest.file.close()
        self._latest = self._idle_timer = None

    def handle_get(self, route: int, body: bytes, limits: Limits) -> None:
        """Send the next part of the snapshot."""
        request, snapshot = _decode_get(body), self._latest
        try:
            if snapshot is None or snapshot.id != request.snapshot:
                raise RequestError("snapshot-not-found", "there is no such snapshot any more: save the session again")
            if request.offset != snapshot.offset:
                raise RequestError("invalid-request", f"offset: the next part begins at {snapshot.offset}")
            part = snapshot.read(limits.max_part_bytes)
        except RequestError as error:
            self._replies.send_error(route, request.id, error.code, error.message)
            return
        if snapshot.offset == snapshot.size:
            self.drop()
        else:
            self._restart_timer()
        self._replies.send_done(route, request.id, data=part, offset=request.offset, bytes=snapshot.size)


class _Snapshot:
    """A snapshot on its way to a client: header, file and checksum, read once from the beginning."""

    def __init__(self, header: SnapshotHeader, file: IO[bytes]) -> None:
        self.id = secrets.token_hex(16)
        self.file = file
        self.offset = 0
        self._head = encode_header(header)
        self._checksum_at = len(self._head) + header.bytes
        self.size = self._checksum_at + CHECKSUM_BYTES
        self._hash = hashlib.sha256()
        self._checksum: bytes | None = None

    def read(self, most: int) -> bytes:
        """Return the next part, of `most` bytes if there are so many. Raises RequestError `snapshot-failed`."""
        part = b""
        while len(part) < most and self.offset < self.size:
            piece = self._read_piece(most - len(part))
            self._hash.update(piece)
            self.offset += len(piece)
            part += piece
        return part

    def _read_piece(self, most: int) -> bytes:
        """Return the next bytes of header, file or checksum."""
        if self.offset < len(self._head):
            return self._head[self.offset : self.offset + most]
        if self.offset < self._checksum_at:
            return self._read_file(min(most, self._checksum_at - self.offset))
        if self._checksum is None:  # everything before is hashed
            self._checksum = checksum_line(self._hash.hexdigest())
        return self._checksum[self.offset - self._checksum_at :][:most]

    def _read_file(self, size: int) -> bytes:
        """Return bytes of the file, which the session can still write to."""
        try:
            part = os.pread(self.file.fileno(), size, self.offset - len(self._head))
        except OSError as error:
            raise RequestError("snapshot-failed", f"the snapshot cannot be read: {error.strerror}") from None
        if not part:
            raise RequestError("snapshot-failed", "the session has changed its snapshot meanwhile: save it again")
        return part


def _store(file: IO[bytes], data: str | None, most: int) -> str | None:
    """Write data of the reply, for runtimes that do not write themselves. Return an error message, or None."""
    try:
        if data is not None:
            file.write(data.encode())
        if os.fstat(file.fileno()).st_size > most:  # the interpreter wrote it and may ignore the limit
            return f"the snapshot is longer than {most} bytes (max-snapshot-bytes = {most})"
    except OSError as error:
        return f"the snapshot cannot be written: {error.strerror}"
    return None

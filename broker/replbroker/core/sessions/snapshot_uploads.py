"""Snapshots that clients send to the broker: at most one of each connection, for as long as parts come."""

from __future__ import annotations

from collections.abc import Callable

from replbroker.core.effects import DeleteSnapshot, Effect, Peer
from replwire.deadlines import Deadline, Deadlines
from replwire.link import SnapshotBody, SnapshotSource
from replwire.snapshot_file import CHECKSUM_BYTES, SnapshotChecksum, SnapshotHeader


class SnapshotUpload:
    """A snapshot that a client sends.

    Attributes:
        id: Names it to its sender.
        peer: Its sender.
        identity: The sender's identity, whose uploads count together.
        header: The header of the file.
        size: Bytes that have come.
        path: The file with these; None until the first part is written.
        is_complete: It was sent whole, and its checksum is right.
    """

    def __init__(self, id: str, peer: Peer, identity: str, header: SnapshotHeader, begin: int) -> None:
        self.id = id
        self.peer = peer
        self.identity = identity
        self.header = header
        self.size = 0
        self.path: str | None = None
        self.is_complete = False
        self.deadline: Deadline | None = None
        self._begin = begin  # of the snapshot, after the header
        self._checksum = SnapshotChecksum()

    def add(self, part: bytes) -> None:
        """Count one more part."""
        self.size += len(part)
        self._checksum.update(part)

    def find_damage(self) -> str | None:
        """Return why the whole file is not as it was saved, or None."""
        expected = self._begin + self.header.bytes + CHECKSUM_BYTES
        if self.size != expected:
            return f"it has {self.size} bytes, and its header says {expected}"
        return None if self._checksum.is_valid else "its checksum is wrong: it was changed since it was saved"

    def source(self) -> SnapshotSource:
        """Return the place of the snapshot, for a worker."""
        assert self.path is not None
        return SnapshotSource(self.path, self._begin, self.header.bytes, self.header.runtime_version)

    def describe(self) -> SnapshotBody:
        """Return what the header says of the snapshot, for the reply to its sender."""
        header = self.header
        assert self.path is not None
        return SnapshotBody(path=self.path, count=header.count, bytes=header.bytes, skipped=header.skipped)


class SnapshotUploads:
    """All snapshots that clients are sending, or have sent for a session that is not opened yet."""

    def __init__(self, emit: Callable[[Effect], None], deadlines: Deadlines) -> None:
        self._emit = emit
        self._deadlines = deadlines
        self._uploads: dict[Peer, SnapshotUpload] = {}

    def find(self, peer: Peer, snapshot: str) -> SnapshotUpload | None:
        """Return the upload of a connection with this id, or None."""
        upload = self._uploads.get(peer)
        return upload if upload is not None and upload.id == snapshot else None

    def bytes_of(self, identity: str) -> int:
        """Return how much an identity has sent, on all its connections."""
        return sum(upload.size for upload in self._uploads.values() if upload.identity == identity)

    def add(self, upload: SnapshotUpload) -> None:
        """Add an upload. It replaces an earlier one of the same connection."""
        self.forget_peer(upload.peer)
        self._uploads[upload.peer] = upload

    def expect_more(self, upload: SnapshotUpload, until: float) -> None:
        """Drop an upload at this moment, in monotonic seconds, unless more comes before."""
        self._deadlines.cancel(upload.deadline)
        upload.deadline = self._deadlines.call_at(until, lambda _: self.drop(upload))

    def drop(self, upload: SnapshotUpload) -> None:
        """Forget an upload and delete its file."""
        self.release(upload)
        if upload.path is not None:
            self._emit(DeleteSnapshot(upload.path))

    def release(self, upload: SnapshotUpload) -> None:
        """Forget an upload, whose file somebody else deletes."""
        self._deadlines.cancel(upload.deadline)
        if self._uploads.get(upload.peer) is upload:
            del self._uploads[upload.peer]

    def forget_peer(self, peer: Peer) -> None:
        """Drop the upload of a connection, if there is one."""
        if (upload := self._uploads.get(peer)) is not None:
            self.drop(upload)

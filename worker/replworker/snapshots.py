"""Transfer of a session's variables to another: written to a file by one interpreter, read by the next.

The file is in a directory of the broker; interpreters get it as an open descriptor and never see its name. The worker
does not parse it. Until it is complete, its name contains the worker's pid, so `remove_stale_snapshots` finds files of
killed workers.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from replwire.link import AssignBody, FrameKind, SnapshotBody, SnapshotSource, encode
from replwire.private_directories import make_private_directory
from replworker.interpreter import Interpreter
from replworker.reply_sender import ReplySender
from replworker.runtimes import frames
from replworker.runtimes.codec import MAX_FRAME_BYTES
from replworker.sandbox import bounded_read


class SnapshotTransfer:
    """Writes and reads snapshots of one interpreter.

    Args:
        voice: sends what was written to the broker
        interpreter: the interpreter
        directory: where snapshots for clones are
        hibernated: where those of hibernated sessions are
        dill: where dill is installed
    """

    def __init__(
        self, replies: ReplySender, interpreter: Interpreter, directory: str, hibernated: str, dill: str
    ) -> None:
        self._replies = replies
        self._interpreter = interpreter
        self._directories = {"clone": directory, "hibernate": hibernated}
        self._dill = dill

    def dump(self, op: str, route: int, most: int, ended: Callable[[str | None], None]) -> int | None:
        """Request a snapshot; `ended` gets None, or why it failed. Return the request number, if any.

        Args:
            op: what it is for: `clone` or `hibernate`
            route: route of the request
            most: its largest size in bytes
            ended: called at the end
        """
        directory = self._directories[op]
        if not self._interpreter.supports("dump"):
            ended("this runtime cannot be copied")
            return None
        try:
            make_private_directory(os.path.dirname(directory))
            make_private_directory(directory)
            name = secrets.token_hex(16)
            begun, path = f"{directory}/{os.getpid()}-{name}", f"{directory}/{name}"
            fd = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            ended(f"cannot create a file for the snapshot: {error.strerror}")
            return None

        def dumped(event: frames.FrameEvent) -> None:
            assert isinstance(event, frames.DumpedFrame)
            error = event.error or self._store(begun, path, event.data, most)
            if error is not None:
                Path(begun).unlink(missing_ok=True)
                ended(error)
                return
            body = SnapshotBody(path=path, count=event.count, bytes=os.stat(path).st_size, skipped=event.skipped)
            self._replies.send_control(FrameKind.SNAPSHOT, encode(body), route=route)
            ended(None)

        number = self._interpreter.next_number()
        try:
            self._interpreter.request(frames.DumpFrame(number, most, self._dill), dumped, fd)
        finally:
            os.close(fd)
        return number

    @staticmethod
    def _store(begun: str, path: str, data: str | None, most: int) -> str | None:
        """Write data from the reply and rename the complete file. Return an error message, or None."""
        try:
            if data is not None:
                Path(begun).write_text(data)
            if os.stat(begun).st_size > most:  # the interpreter wrote it and may ignore the limit
                return f"the snapshot is longer than {most} bytes (max-snapshot-bytes = {most})"
            os.rename(begun, path)
        except OSError as error:
            return f"the snapshot cannot be written: {error.strerror}"
        return None

    def restore(self, source: SnapshotSource, then: Callable[[frames.DumpedFrame], None]) -> None:
        """Restore a snapshot; `then` gets the interpreter's report, or one with an error message."""
        number = self._interpreter.next_number()
        try:
            fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            then(frames.DumpedFrame(n=number, error=f"the snapshot cannot be opened: {error.strerror}"))
            return

        def restored(event: frames.FrameEvent) -> None:
            assert isinstance(event, frames.DumpedFrame)
            then(event)

        assert self._interpreter.ready is not None
        try:
            if self._interpreter.ready.runtime == "python":
                frame = frames.RestoreFrame(number, None, self._dill, source.offset, source.size)
                self._interpreter.request(frame, restored, fd)
            else:
                frame = frames.RestoreFrame(number, _read_text(fd, source))
                self._interpreter.request(frame, restored)
        except bounded_read.Oversized as error:  # it was modified: originally it fit one frame
            then(frames.DumpedFrame(n=number, error=str(error)))
        finally:
            os.close(fd)


def _read_text(fd: int, source: SnapshotSource) -> str:
    os.lseek(fd, source.offset, os.SEEK_SET)
    data = bounded_read.read_bounded(fd, MAX_FRAME_BYTES, "the snapshot")
    return data[: source.size].decode("utf-8", "replace")


def snapshot_of(assignment: AssignBody) -> SnapshotSource | None:
    """Return the snapshot that a session begins with, or None."""
    stored = assignment.hibernated
    return assignment.restore if stored is None else SnapshotSource(stored.path)


def failure_of(op: str) -> str:
    """Return the fault of a request for a snapshot that fails."""
    return "snapshot-failed" if op == "hibernate" else "clone-failed"


def remove_unused(directory: str, used: Collection[str]) -> None:
    """Remove complete files that nobody uses."""
    for file in Path(directory).glob("*"):
        if "-" not in file.name and str(file) not in used:
            with suppress(OSError):
                file.unlink()


def remove_stale_snapshots(directory: str) -> None:
    """Remove incomplete files of dead workers."""
    for file in Path(directory).glob("*-*"):
        if not os.path.exists(f"/proc/{file.name.partition('-')[0]}"):
            with suppress(OSError):
                file.unlink()


def package_directory(package: str) -> str:
    """Return the directory an installed package is imported from, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return os.path.dirname(os.path.dirname(spec.origin))

"""`put-file` and `get-file`: files that the session's own code may write or read, in parts, beside its evals.

No state is kept between parts: what has arrived of a file is in a hidden file beside it, so a transfer goes on after a
lost connection. Files are found in the sandbox's root and opened with the rights of its user.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec

from replwire.deadlines import Deadlines
from replwire.faults import RequestError
from replwire.identifiers import path_error
from replwire.limits import Limits
from replwire.ops import GetFile, PutFile
from replworker.reply_sender import ReplySender
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.sandbox import rooted_path
from replworker.sandbox.rights import Rights, acting_as
from replworker.sandbox.rooted_path import FoundPath
from replworker.session_sandbox import SessionSandbox

_HASHED_AT_ONCE = 4 << 20  # takes some milliseconds, and the worker does everything else in between
_NAME_BYTES = 200  # of the file's name in that of its parts: a name has at most 255
_MODE = 0o644
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.ETXTBSY)  # EBUSY: a protected file
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_WRONG = (errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO)

_decode_put = msgspec.json.Decoder(PutFile).decode
_decode_get = msgspec.json.Decoder(GetFile).decode


class FileTransfer:
    """Moves files in and out of one session."""

    def __init__(
        self,
        process: InterpreterProcess,
        replies: ReplySender,
        timers: Deadlines,
        sandbox: SessionSandbox | None,
        get_limits: Callable[[], Limits],
    ) -> None:
        self._process = process
        self._replies = replies
        self._timers = timers
        self._sandbox = sandbox
        self._get_limits = get_limits

    def handle_put(self, route: int, body: bytes) -> None:
        """Write a part, and replace the file with the last one."""
        request = _decode_put(body)
        with ExitStack() as held, self._answering(route, request.id, held):
            self._check_part(request)
            self._put(route, request, held)

    def handle_get(self, route: int, body: bytes) -> None:
        """Read a part."""
        request = _decode_get(body)
        with ExitStack() as held, self._answering(route, request.id, held):
            self._get(route, request, held)

    def _get(self, route: int, request: GetFile, held: ExitStack) -> None:
        limits = self._get_limits()
        with acting_as(self._rights):
            found = self._find(request.file, held)
            if found.fd is None:
                raise RequestError("file-not-found", f"file not found: {request.file}")
            file = rooted_path.reopen(found.fd, os.O_RDONLY)
        held.callback(os.close, file)
        size = os.fstat(file).st_size
        if size > limits.max_transfer_bytes:
            raise _too_large(size, "max-transfer-bytes", limits.max_transfer_bytes)
        if request.offset > size:
            raise RequestError("invalid-request", f"offset {request.offset} is beyond the file's {size} bytes")
        most = min(request.max_bytes or limits.max_part_bytes, limits.max_part_bytes)
        data = os.pread(file, most, request.offset)
        end = request.offset + len(data)
        answer = {"file": self._absolute(request.file), "data": data, "offset": end}
        if data and end < size:
            self._replies.send_done(route, request.id, **answer, bytes=size)
            return
        later = held.pop_all()
        self._hash(
            (route, request.id),
            later,
            (file, end),
            lambda sha256: self._replies.send_done(route, request.id, **answer, bytes=end, sha256=sha256),
        )

    def _put(self, route: int, request: PutFile, held: ExitStack) -> None:
        expected = request.sha256 or hashlib.sha256(request.data).hexdigest()
        file = self._absolute(request.file)
        with acting_as(self._rights):
            found = self._find(request.file, held)
            if found.fd is not None:  # a mount that protects it would not stop a rename from outside of the sandbox
                os.close(rooted_path.reopen(found.fd, os.O_WRONLY))
            parts = _PartsFile(found, expected)
            if not request.final and not request.data:
                self._replies.send_done(route, request.id, file=file, offset=parts.arrived())
                return
            fd = parts.write(request.data, request.offset, keep=request.sha256 is not None)
            held.callback(os.close, fd)
        size = request.offset + len(request.data)
        if not request.final:
            self._replies.send_done(route, request.id, file=file, offset=size)
            return

        def finish(sha256: str) -> None:
            with acting_as(self._rights):
                parts.replace_file(fd, sha256)
            self._replies.send_done(route, request.id, file=file, offset=size, bytes=size, sha256=sha256)

        self._hash((route, request.id), held.pop_all(), (fd, size), finish)

    def _check_part(self, request: PutFile) -> None:
        limits = self._get_limits()
        size = request.offset + len(request.data)
        bounds = [(len(request.data), "max-part-bytes", limits.max_part_bytes)]
        bounds.append((size, "max-transfer-bytes", limits.max_transfer_bytes))
        if self._sandbox is not None:
            bounds.append((size, "sandbox.file-bytes", self._sandbox.policy.limits.file_bytes))
        for length, limit, most in bounds:
            if length > most:
                raise _too_large(length, limit, most)
        if request.sha256 is None and (request.offset or not request.final):
            raise RequestError("invalid-request", "sha256: required for a file of several parts")

    @property
    def _rights(self) -> Rights | None:
        return None if self._sandbox is None else self._sandbox.rights

    def _absolute(self, file: str) -> str:
        return os.path.normpath(os.path.join(self._process.cwd() or "/", file))

    def _find(self, file: str, held: ExitStack) -> FoundPath:
        """Find a file as the session's processes would, and check that it is one of bytes on a disk."""
        if (why := path_error("file", file)) is not None:
            raise RequestError("invalid-request", why)
        try:
            root = self._process.open_root()
        except OSError:
            raise RequestError("busy", "the session's interpreter is being replaced", retry_after_ms=1000) from None
        held.callback(os.close, root)
        found = rooted_path.find(root, os.path.join(self._process.cwd() or "/", file))
        held.callback(found.close)
        if rooted_path.is_of_kernel(found.parent if found.fd is None else found.fd):
            raise RequestError("path-not-allowed", f"not a file on a disk: {file}")
        if found.fd is not None:
            _check_regular(found.fd, file)
        return found

    def _hash(
        self, asked: tuple[int, str], held: ExitStack, file: tuple[int, int], then: Callable[[str], None]
    ) -> None:
        """Hash the first bytes of a file, step by step; then call `then` with the result, and close what is held."""
        (fd, size), digest, at = file, hashlib.sha256(), 0

        def step(_: float) -> None:
            nonlocal at
            with self._answering(*asked, held):
                piece = os.pread(fd, min(_HASHED_AT_ONCE, size - at), at)
                digest.update(piece)
                at += len(piece)
                if piece and at < size:
                    self._timers.call_at(time.monotonic(), step)
                    return
                then(digest.hexdigest())
                held.close()

        step(0.0)

    @contextmanager
    def _answering(self, route: int, request_id: str, held: ExitStack) -> Iterator[None]:
        """Answer with the error that happens inside, and close what is held."""
        try:
            yield
        except (RequestError, OSError) as error:
            held.close()
            refusal = error if isinstance(error, RequestError) else _refusal(error)
            self._replies.send_error(route, request_id, refusal.code, refusal.message, **refusal.fields)


class _PartsFile:
    """The hidden file with the parts that have arrived, beside the file that it will replace."""

    def __init__(self, found: FoundPath, sha256: str) -> None:
        self._place = found
        self._sha256 = sha256
        self._name = f".{os.fsdecode(os.fsencode(found.name)[:_NAME_BYTES])}.{sha256[:16]}.part"

    def arrived(self) -> int:
        """Return the number of bytes that have arrived."""
        try:
            return os.stat(self._name, dir_fd=self._place.parent, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def write(self, data: bytes, offset: int, *, keep: bool) -> int:
        """Write a part, and cut off what was written after it. Return a descriptor; `keep` the file after a failure."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        fd = os.open(self._name, flags, 0o600, dir_fd=self._place.parent)
        try:
            _check_regular(fd, "the file with its parts")
            if offset > (size := os.fstat(fd).st_size):
                err = f"offset {offset} is beyond the {size} bytes that have arrived"
                raise RequestError("invalid-request", err, offset=size)
            os.ftruncate(fd, offset)
            _write_all(fd, data, offset)
        except (RequestError, OSError):
            os.close(fd)
            if not keep or not self.arrived():
                self._remove()
            raise
        return fd

    def replace_file(self, fd: int, sha256: str) -> None:
        """Rename it, if the parts are what was announced; it gets the mode of the file that it replaces."""
        if sha256 != self._sha256:
            self._remove()
            raise RequestError("invalid-request", f"sha256: the bytes that arrived have {sha256}: send the file again")
        old = self._place.fd
        os.fchmod(fd, _MODE if old is None else stat.S_IMODE(os.fstat(old).st_mode) & 0o777)
        try:
            os.rename(self._name, self._place.name, src_dir_fd=self._place.parent, dst_dir_fd=self._place.parent)
        except OSError:
            self._remove()
            raise

    def _remove(self) -> None:
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self._place.parent)


def _check_regular(fd: int, name: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise RequestError("invalid-request", f"{name} is a directory")
    if not stat.S_ISREG(mode):
        raise RequestError("invalid-request", f"{name} is not a regular file")


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def _too_large(size: int, limit: str, most: int) -> RequestError:
    err = f"{size} bytes exceed the limit ({limit} = {most})"
    return RequestError("message-too-large", err, limit=limit, limit_value=most)


def _refusal(error: OSError) -> RequestError:
    why: dict[str, Any] = {"err": error.strerror or "the file cannot be used"}
    if error.errno in _MISSING:
        return RequestError("file-not-found", **why)
    if error.errno in _DENIED:
        return RequestError("path-not-allowed", **why)
    return RequestError("invalid-request" if error.errno in _WRONG else "io-error", **why)

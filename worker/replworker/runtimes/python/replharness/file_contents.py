"""Contents of a session's files: one file without a name, in the file system of the session's directory.

It ends with the last process that has it open: the session's, or a copy that waits. So nothing of it is ever left.
"""

from __future__ import annotations

import errno
import os

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

__builtins__ = SEALED

_PIECE_BYTES = 1 << 20


class ContentFile:
    """Contents one after the other, at most `most` bytes. Whoever goes on from a copy appends to the same file."""

    def __init__(self, root: bytes, most: int) -> None:
        self._most = most
        self._fd = _open_unnamed(root)
        self._identity = os.fstat(self._fd)[1:3]  # inode and device

    def __del__(self) -> None:
        try:
            os.close(self._checked())
        except (OSError, AttributeError):
            pass

    def _checked(self) -> int:
        """Return the descriptor. Raises OSError if the session has closed it or put another file in its place."""
        if os.fstat(self._fd)[1:3] != self._identity:
            raise OSError(errno.EBADF, "the session has closed a descriptor that is not its own")
        return self._fd

    def append(self, source: int) -> int:
        """Append the content of an open file; return its place, or -1 if there is no room for it."""
        fd = self._checked()
        begin = end = os.fstat(fd).st_size
        while True:
            piece = os.pread(source, _PIECE_BYTES, end - begin)
            if not piece:
                return begin
            if end + len(piece) > self._most:
                os.ftruncate(fd, begin)
                return -1
            view = memoryview(piece)
            while view:
                count = os.pwrite(fd, view, end)
                view, end = view[count:], end + count

    def read(self, at: int, size: int) -> Iterator[bytes]:
        """Yield a content in pieces."""
        fd = self._checked()
        while size > 0:
            piece = os.pread(fd, min(size, _PIECE_BYTES), at)
            if not piece:
                raise OSError(errno.EIO, "contents of files are missing")
            yield piece
            at, size = at + len(piece), size - len(piece)

    def equals(self, source: int, at: int, size: int) -> bool:
        """Return whether an open file has this content."""
        offset = 0
        for piece in self.read(at, size):
            if os.pread(source, len(piece), offset) != piece:
                return False
            offset += len(piece)
        return not os.pread(source, 1, offset)


def _open_unnamed(root: bytes) -> int:
    try:
        return os.open(root, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system has this
        import tempfile

        fd, name = tempfile.mkstemp(dir=root)
        os.unlink(name)
        return fd

"""Changes in directories, told by the kernel through one descriptor (inotify). It says that something changed, and
whoever asked looks for itself."""

from __future__ import annotations

import ctypes
import os
import struct

_IN_ATTRIB, _IN_CREATE, _IN_DELETE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x4, 0x100, 0x200, 0x400, 0x800
_IN_CLOSE_WRITE, _IN_MOVED = 0x8, 0x40 | 0x80
_IN_ONLYDIR = 0x01000000
_MASK = (
    _IN_ATTRIB | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_CLOSE_WRITE | _IN_MOVED | _IN_ONLYDIR
)
_EVENT = struct.Struct("iIII")  # inotify_event(7), its name left out
_READ_BYTES = 16 * 1024


class FileWatch:
    """Directories that are watched. `fd` is readable once something in one of them has changed. Raises OSError where
    the kernel gives no more of these descriptors."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._directories: dict[int, str] = {}

    def add(self, directory: str | os.PathLike[str]) -> bool:
        """Watch a directory, again after it was made anew; False when there is none."""
        watch = self._libc.inotify_add_watch(self.fd, os.fsencode(directory), _MASK)
        if watch >= 0:
            self._directories[watch] = os.fspath(directory)
        return bool(watch >= 0)

    def take_changed(self) -> set[str]:
        """The directories in which something changed, or which are gone, since this was asked last."""
        found: set[str] = set()
        while data := self._read():
            at = 0
            while at < len(data):
                watch, _, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                found.update([self._directories[watch]] if watch in self._directories else self._directories.values())
        return found

    def _read(self) -> bytes:
        try:
            return os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

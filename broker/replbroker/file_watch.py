"""Notification of changes in directories through one descriptor (inotify(7)).

A notification says that something changed; whoever asked for it has to look.
"""

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
_EVENT = struct.Struct("iIII")  # inotify_event(7) without the name
_READ_BYTES = 16 * 1024


class FileWatch:
    """Watch on directories.

    Attributes:
        fd: Readable once something in one of the directories has changed.

    Raises:
        OSError: The kernel has no more of these descriptors.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._directories: dict[int, str] = {}

    def add(self, directory: str | os.PathLike[str]) -> bool:
        """Watch a directory, also one that was recreated; return False when it does not exist."""
        watch = self._libc.inotify_add_watch(self.fd, os.fsencode(directory), _MASK)
        if watch >= 0:
            self._directories[watch] = os.fspath(directory)
        return bool(watch >= 0)

    def take_changes(self) -> set[str]:
        """Return the directories that have changed or vanished since the last call."""
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
        """Stop watching."""
        os.close(self.fd)

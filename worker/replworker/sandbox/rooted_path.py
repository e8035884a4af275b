"""Paths below the root of another mount namespace, as its own processes resolve them: symlinks and `..` stay inside.

Component by component with O_PATH, so nothing is opened that has effects, and no rename makes a path lead out. What is
found is opened by its descriptor. openat2(2) would do it in one call, but systemd's RestrictSUIDSGID= blocks it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections import deque
from dataclasses import dataclass

_NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_SYMLINKS = 40  # Linux's own
_STATFS_BYTES = 512
# File systems whose files are the kernel's: proc, sysfs, cgroup, cgroup2, devpts, debugfs, tracefs, securityfs, bpf.
_KERNEL = (0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x1CD1, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class FoundPath:
    """An entry of a directory: both are O_PATH descriptors; `fd` is None where nothing has this name yet."""

    parent: int
    name: str
    fd: int | None

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.parent)
        if self.fd is not None:
            os.close(self.fd)


def find(root: int, path: str) -> FoundPath:
    """Resolve a path below the directory `root`, symlinks at its end too.

    Raises:
        OSError: a directory on the way is missing, is none, or may not be searched
    """
    above, ahead, symlinks = [os.dup(root)], deque(path.split("/")), 0
    try:
        while ahead:
            name = ahead.popleft()
            if name == "..":
                _leave(above)
            if name in ("", ".", ".."):
                continue
            fd = _open_entry(name, above[-1], is_last=not ahead)
            if fd is not None and stat.S_ISLNK(os.fstat(fd).st_mode):
                target = _read_link(fd)
                symlinks += 1
                if symlinks > _MAX_SYMLINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                while target.startswith("/") and len(above) > 1:
                    _leave(above)
                ahead.extendleft(reversed(target.split("/")))
            elif ahead:
                above.append(_directory(fd))
            else:
                return FoundPath(above.pop(), name, fd)
        return FoundPath(above[-1], ".", os.dup(above.pop()))
    finally:
        for each in above:
            os.close(each)


def _open_entry(name: str, directory: int, *, is_last: bool) -> int | None:
    try:
        return os.open(name, _NAME, dir_fd=directory)
    except FileNotFoundError:
        if is_last:
            return None
        raise


def _directory(fd: int | None) -> int:
    """Return the descriptor if it is a directory's."""
    assert fd is not None
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def _read_link(fd: int) -> str:
    try:
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


def _leave(above: list[int]) -> None:
    if len(above) > 1:
        os.close(above.pop())


def is_of_kernel(fd: int) -> bool:
    """Return whether a file belongs to a file system of the kernel, such as /proc: reading it may have effects."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(fd, found):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_long.from_buffer(found).value in _KERNEL


def reopen(fd: int, flags: int) -> int:
    """Open what an O_PATH descriptor stands for, without blocking."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)

"""Mount system calls missing from the standard library. All functions raise OSError."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUSER = 0x1000_0000
# Recent calls have the same numbers on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD = -100
_AT_EMPTY_PATH, _AT_RECURSIVE, _OPEN_TREE_CLONE = 0x1000, 0x8000, 1
_MOVE_FROM_EMPTY_PATH = 4
_RDONLY, _NOSUID, _NODEV, _IDMAP = 0x1, 0x2, 0x4, 0x0010_0000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_CAP_SYS_ADMIN = 21
_NAME = os.O_PATH | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def has_mount_calls() -> bool:
    """Return whether the kernel has the calls (5.12 and later). The probe finds out if they are permitted."""
    for number in (_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR):
        ctypes.set_errno(0)
        _libc.syscall(number, -1, None, 0, 0, 0, 0)
        if ctypes.get_errno() == errno.ENOSYS:
            return False
    return True


def has_sys_admin() -> bool:
    """Return whether this process has CAP_SYS_ADMIN in its user namespace."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def unshare(flags: int) -> None:
    """Unshare namespaces of this process."""
    _call("unshare", _libc.unshare(flags))


def enter(fd: int) -> None:
    """Enter the namespace of a descriptor."""
    _call("setns", _libc.setns(fd, 0))


def make_private() -> None:
    """Stop mount propagation between this namespace and others."""
    _call("mount private", _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))


def tmpfs(path: str, options: str) -> None:
    """Mount an empty tmpfs on a directory."""
    _call(f"mount tmpfs on {path}", _libc.mount(b"tmpfs", path.encode(), b"tmpfs", _NOSUID | _NODEV, options.encode()))


def open_strictly(path: str) -> int:
    """Open a path that contains no symlinks, with O_PATH. ELOOP if there is one.

    Component by component: openat2(2) would do it in one call, but systemd's RestrictSUIDSGID= blocks it.
    """
    fd = os.open("/", _NAME)
    for name in filter(None, path.split("/")):
        above = fd
        try:
            fd = os.open(name, _NAME | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ELOOP, f"open {path}: {os.strerror(errno.ELOOP)}")
    return fd


def clone(fd: int, recursive: bool = True) -> int:
    """Clone the mounts below a descriptor as a detached tree."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    return _call("open_tree", _libc.syscall(_OPEN_TREE, fd, b"", flags))


def restrict(tree: int, *, read_only: bool) -> None:
    """Set nosuid and nodev, and optionally read-only, on a mount tree."""
    _set(tree, _NOSUID | _NODEV | (_RDONLY if read_only else 0), recursive=True)


def make_writable(tree: int) -> None:
    """Clear the read-only flag, where permitted."""
    _set(tree, 0, clear=_RDONLY)


def map_owner(tree: int, user_namespace: int) -> None:
    """Map file owners of a clone through a user namespace. EINVAL if the file system does not support it."""
    _set(tree, _IDMAP, user_namespace=user_namespace)


def _set(tree: int, flags: int, *, clear: int = 0, user_namespace: int = 0, recursive: bool = False) -> None:
    attributes = struct.pack("=QQQQ", flags, clear, 0, user_namespace)
    how = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    _call("mount_setattr", _libc.syscall(_MOUNT_SETATTR, tree, b"", how, attributes, len(attributes)))


def attach(tree: int, path: str) -> None:
    """Attach a cloned tree to a path of this namespace; a symlink at its end is not followed."""
    _call(
        f"move_mount to {path}",
        _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, path.encode(), _MOVE_FROM_EMPTY_PATH),
    )


def make_mount_point(path: str, directory: bool) -> None:
    """Create a mount point if it is missing, also below a read-only mount."""
    if os.path.lexists(path):
        return
    parent = os.path.dirname(path)
    missing = [os.path.basename(path)]
    while not os.path.lexists(parent):
        missing.insert(0, os.path.basename(parent))
        parent = os.path.dirname(parent)
    base = open_strictly(parent)
    try:
        tree = clone(base, recursive=False)
        try:
            make_writable(tree)
            _make(tree, missing, directory)
        finally:
            os.close(tree)
    finally:
        os.close(base)


def _make(tree: int, names: list[str], directory: bool) -> None:
    for depth in range(1, len(names) + 1):
        name = "/".join(names[:depth])
        if directory or depth < len(names):
            os.mkdir(name, 0o755, dir_fd=tree)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=tree))

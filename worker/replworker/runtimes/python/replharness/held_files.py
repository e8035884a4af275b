"""Descriptors and child processes of a session at a checkpoint, and what a waiting copy does with them.

A copy must not keep alive what the session closes: the other end of a socket or pipe would never see its end. So it
gives up sockets and pipes. A file's position belongs to the open file, which a fork shares, so it opens files again.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

__builtins__ = SEALED

_FIRST_HIGH = 64  # above what at-fork handlers of libraries close by number
_CHILDREN = 50
_CREATION = os.O_CREAT | os.O_EXCL | os.O_TRUNC


def duplicate_high(fd: int) -> int:
    """Duplicate a descriptor to a high number."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_HIGH)


class Survey:
    """Descriptors, other than those in `own`, and children that the session has now."""

    def __init__(self, own: Tuple[int, ...]) -> None:
        self._sockets: List[int] = []
        self._pipes: List[int] = []
        self._others: List[int] = []  # epoll, timers, events
        self._files: List[Tuple[int, int]] = []  # with positions
        self._shared_memory = 0
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            if fd not in own:
                self._add(fd)
        self._children = _children()

    def _add(self, fd: int) -> None:
        try:
            kind = stat.S_IFMT(os.fstat(fd).st_mode)
            if kind == stat.S_IFSOCK:
                self._sockets.append(fd)
            elif kind == stat.S_IFIFO:
                self._pipes.append(fd)
            elif kind == stat.S_IFREG:
                self._files.append((fd, os.lseek(fd, 0, os.SEEK_CUR)))
            elif kind == 0:
                self._others.append(fd)
        except OSError:  # the listing's own
            pass

    def counts(self) -> Dict[str, Any]:
        """Return what a checkpoint does not contain."""
        return {
            "sockets": len(self._sockets),
            "pipes": len(self._pipes),
            "events": len(self._others),
            "children": self._children,
        }

    def give_up(self) -> None:
        """Replace sockets and pipes by dead ones, and open files again."""
        for fd in self._sockets:
            _replace_by_dead_pipe(fd, os.O_RDWR)
        for fd in self._pipes:
            _replace_by_dead_pipe(fd, fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE)
        for fd, position in self._files:
            _open_again(fd, position)

    def forget_children(self) -> None:
        """Tell `subprocess` that its children were killed: they are not this process's, and would seem to succeed."""
        module = sys.modules.get("subprocess")
        if module is None or not self._children:
            return
        import gc

        kind = module.__dict__.get("Popen")
        for each in gc.get_objects():
            if type(each) is kind and each.__dict__.get("returncode", 0) is None:
                each.__dict__["returncode"] = -9


def _replace_by_dead_pipe(fd: int, access: int) -> None:
    """Replace a descriptor by the end of a pipe without another: reading is at its end, writing fails."""
    read, write = os.pipe()
    os.dup2(write if access == os.O_WRONLY else read, fd, os.get_inheritable(fd))
    os.close(read)
    os.close(write)


def _open_again(fd: int, position: int) -> None:
    try:
        new = os.open("/proc/self/fd/%d" % fd, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_CREATION)
    except OSError:  # not permitted any more: it stays shared
        return
    os.lseek(new, position, os.SEEK_SET)
    os.dup2(new, fd, os.get_inheritable(fd))
    os.close(new)


def _children() -> List[int]:
    try:
        with open("/proc/self/task/%d/children" % os.getpid(), "rb") as file:
            return [int(pid) for pid in file.read().split()[:_CHILDREN]]
    except OSError:
        return []

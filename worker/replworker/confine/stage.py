"""For a root broker: a private view of the host in which the session's user can reach what it was granted.

A runtime below /root is out of reach for anybody else, and bubblewrap runs as somebody else. In a mount namespace of
its own, the first closed folder on the way is covered by an empty one that is open and holds the granted paths alone,
at the same place. Nothing of the host is changed, and nothing else in the closed folder comes into view.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
from collections.abc import Iterable
from pathlib import Path

from replwire.policy import within
from replworker.confine import mounts

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def open_way(paths: Iterable[str], owned: Iterable[str], uid: int) -> None:
    """Let a user without any group reach `paths`; `owned` ones as if they were its own, where the host's owner is
    somebody. Changes the calling process's mount namespace, for good. Raises OSError."""
    everything = {path: path in set(owned) for path in (*paths, *owned)}
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.keep_private()
    covers = {path: closed(path, uid) for path in everything}
    owners = Owners(uid)
    trees = {path: _tree(path, owners if mine else None) for path, mine in everything.items() if mine or covers[path]}
    for folder in sorted({cover for cover in covers.values() if cover}):
        mounts.tmpfs(folder, "mode=755,size=64k")
    mask = os.umask(0o022)  # the user has to pass what is made, whatever the broker's mask closes
    for path, tree in trees.items():
        _make(path, stat.S_ISDIR(os.fstat(tree).st_mode))
        mounts.attach(tree, path)
        os.close(tree)
    os.umask(mask)


class Owners:
    """Shows the owner of a clone as this user, and what the user makes as the owner's."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._namespaces: dict[tuple[int, int], int] = {}

    def adopt(self, tree: int) -> None:
        """Raises OSError, EINVAL where the file system cannot do it."""
        found = os.stat(tree)
        if found.st_uid != self._uid:
            mounts.map_owner(tree, self.namespace(found.st_uid, found.st_gid))

    def namespace(self, uid: int, gid: int) -> int:
        """What maps this owner, made when it is first asked for, which takes milliseconds. Raises OSError."""
        owner = uid, gid
        if owner not in self._namespaces:
            self._namespaces[owner] = _user_namespace(f"{uid} {self._uid} 1", f"{gid} {self._uid} 1")
        return self._namespaces[owner]


def _tree(path: str, owners: Owners | None) -> int:
    place = mounts.open_strictly(path)
    try:
        tree = mounts.clone(place)
    finally:
        os.close(place)
    if owners is not None:
        owners.adopt(tree)
    return tree


def closed(path: str, uid: int, root: str = "/") -> str | None:
    """The first folder on the way from `root` that this user may not pass."""
    for folder in reversed(Path(path).parents):
        if str(folder) == "/" or not within(str(folder), [root]):
            continue
        found = os.stat(folder)
        if not found.st_mode & (0o100 if found.st_uid == uid else 0o001):
            return str(folder)
    return None


def _make(path: str, folder: bool) -> None:
    if os.path.lexists(path):
        return
    os.makedirs(path if folder else os.path.dirname(path), 0o755, exist_ok=True)
    if not folder:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))


def die_with(parent: int) -> None:
    """End this process when its parent does. To be asked for again after a change of user or of user namespace."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was over before we asked
        os._exit(1)


def _user_namespace(uid_map: str, gid_map: str) -> int:
    """A namespace with these maps, as a descriptor; nothing runs in it."""
    ready, told = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            mounts.unshare(mounts.CLONE_NEWUSER)
            die_with(parent)
            os.write(told, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    try:
        if not os.read(ready, 1):
            raise OSError(1, "no user namespace for an id map")
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(text)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

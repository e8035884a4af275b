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
from collections.abc import Iterable, Sequence
from pathlib import Path

from replwire.policy import is_within
from replworker.sandbox import mounts
from replworker.sandbox.rights import Rights, acting_as

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def expose_paths(
    paths: Iterable[str], owned: Iterable[str], uid: int, asked: Sequence[str] = (), rights: Rights | None = None
) -> None:
    """Let a user without any group reach `paths`; `owned` ones as if they were its own, where the host's owner is
    somebody. Those that a client has `asked` for are opened with that client's `rights`, and shown with no others.
    Changes the calling process's mount namespace, for good. Raises OSError."""
    mine = {*owned, *(asked if rights is not None else ())}
    everything = {path: path in mine for path in (*paths, *owned)}
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.make_private()
    covers = {path: first_closed_dir(path, uid) for path in everything}
    owners = IdMapper(uid)
    trees = {}
    for path, adopted in everything.items():
        if adopted or covers[path]:
            theirs = rights if path in asked else None
            trees[path] = clone_tree(path, theirs)
            if adopted:
                owners.map_tree(trees[path], theirs)
    for folder in sorted({cover for cover in covers.values() if cover}):
        mounts.tmpfs(folder, "mode=755,size=64k")
    mask = os.umask(0o022)  # the user has to pass what is made, whatever the broker's mask closes
    for path, fd in trees.items():
        _make(path, stat.S_ISDIR(os.fstat(fd).st_mode))
        mounts.attach(fd, path)
        os.close(fd)
    os.umask(mask)


class IdMapper:
    """Shows files of a clone as this user's, and what the user makes as their owner's."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._namespaces: dict[tuple[str, str], int] = {}

    def map_tree(self, tree: int, rights: Rights | None = None) -> None:
        """The session's user stands for the owner of the clone's root, or, with `rights`, for that user and for it
        alone. Raises OSError, EINVAL where the file system cannot do it."""
        found = os.stat(tree)
        if rights is not None:
            mounts.map_owner(tree, self._namespace(*self._swap_maps(rights, found.st_gid)))
        elif found.st_uid != self._uid:
            mounts.map_owner(tree, self.user_namespace(found.st_uid, found.st_gid))

    def _swap_maps(self, rights: Rights, gid: int) -> tuple[str, str]:
        """Maps in which everybody else stays who they are: files of others keep their owners, and their rights for
        all count. A session has one group: the clone's root's, where the owner of the session is in it."""
        group = gid if gid in rights.groups else rights.gid
        return swapped_id_map(_id_ranges("uid"), rights.uid, self._uid), swapped_id_map(
            _id_ranges("gid"), group, self._uid
        )

    def user_namespace(self, uid: int, gid: int) -> int:
        """What maps this owner, made when it is first asked for, which takes milliseconds. Raises OSError."""
        return self._namespace(f"{uid} {self._uid} 1", f"{gid} {self._uid} 1")

    def _namespace(self, uid_map: str, gid_map: str) -> int:
        maps = uid_map, gid_map
        if maps not in self._namespaces:
            self._namespaces[maps] = _user_namespace(*maps)
        return self._namespaces[maps]


def swapped_id_map(ranges: Iterable[tuple[int, int]], one: int, other: int) -> str:
    """An id map in which two ids have changed places. `ranges` are those that there are: first id and count."""
    lines = []
    for start, count in ranges:
        for at in sorted({each for each in (one, other) if start <= each < start + count}):
            if at > start:
                lines.append(f"{start} {start} {at - start}")
            lines.append(f"{at} {other if at == one else one} 1")
            start, count = at + 1, count - (at + 1 - start)
        if count:
            lines.append(f"{start} {start} {count}")
    return "\n".join(lines)


def _id_ranges(kind: str) -> list[tuple[int, int]]:
    """The ids that this process's user namespace has."""
    lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    return [(int(line.split()[0]), int(line.split()[2])) for line in lines]


def clone_tree(path: str, rights: Rights | None) -> int:
    """A clone of what lies at a path, opened with these rights."""
    with acting_as(rights):
        place = mounts.open_strictly(path)
    try:
        return mounts.clone(place)
    finally:
        os.close(place)


def first_closed_dir(path: str, uid: int, root: str = "/") -> str | None:
    """The first folder on the way from `root` that this user may not pass."""
    for folder in reversed(Path(path).parents):
        if str(folder) == "/" or not is_within(str(folder), [root]):
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

"""Private mount namespace for a root broker, in which the session's user reaches what it was granted.

A runtime below /root is not accessible to other users, and bubblewrap runs as one. In a private mount namespace, the
first inaccessible directory on the way is covered by an empty, accessible one with only the granted paths at the same
place. The host is not changed, and nothing else in the directory becomes visible.
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
    paths: Iterable[str], owned: Iterable[str], uid: int, requested: Sequence[str] = (), rights: Rights | None = None
) -> None:
    """Expose `paths` to a user without groups, in the calling process's mount namespace, permanently.

    `owned` paths are id-mapped to the user, where the host's owner is another user. Paths in `requested`, named by a
    client, are opened with that client's `rights` and shown with no others.

    Raises:
        OSError: a path cannot be opened or mounted
    """
    mine = {*owned, *(requested if rights is not None else ())}
    everything = {path: path in mine for path in (*paths, *owned)}
    mounts.unshare(mounts.CLONE_NEWNS)
    mounts.make_private()
    covers = {path: first_closed_dir(path, uid) for path in everything}
    owners = IdMapper(uid)
    trees = {}
    for path, adopted in everything.items():
        if adopted or covers[path]:
            theirs = rights if path in requested else None
            trees[path] = clone_tree(path, theirs)
            if adopted:
                owners.map_tree(trees[path], theirs)
    for directory in sorted({cover for cover in covers.values() if cover}):
        mounts.tmpfs(directory, "mode=755,size=64k")
    mask = os.umask(0o022)  # the user has to pass new directories, whatever the broker's umask
    for path, fd in trees.items():
        _make(path, stat.S_ISDIR(os.fstat(fd).st_mode))
        mounts.attach(fd, path)
        os.close(fd)
    os.umask(mask)


class IdMapper:
    """Maps files of a clone to the session's user, and files the user creates to their owner."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._namespaces: dict[tuple[str, str], int] = {}

    def map_tree(self, tree: int, rights: Rights | None = None) -> None:
        """Map the owner of the clone's root, or only the user in `rights`, to the session's user.

        Raises:
            OSError: EINVAL if the file system does not support id mapping
        """
        found = os.stat(tree)
        if rights is not None:
            mounts.map_owner(tree, self._namespace(*self._swap_maps(rights, found.st_gid)))
        elif found.st_uid != self._uid:
            mounts.map_owner(tree, self.user_namespace(found.st_uid, found.st_gid))

    def _swap_maps(self, rights: Rights, gid: int) -> tuple[str, str]:
        """Return maps that swap two users and leave all others in place, so that other files keep their owners.

        A session has one group: the clone's root's, if the session's owner is a member of it.
        """
        group = gid if gid in rights.groups else rights.gid
        return swapped_id_map(_id_ranges("uid"), rights.uid, self._uid), swapped_id_map(
            _id_ranges("gid"), group, self._uid
        )

    def user_namespace(self, uid: int, gid: int) -> int:
        """Return the namespace that maps this owner; created on first use, which takes milliseconds.

        Raises:
            OSError: the namespace cannot be created
        """
        return self._namespace(f"{uid} {self._uid} 1", f"{gid} {self._uid} 1")

    def _namespace(self, uid_map: str, gid_map: str) -> int:
        maps = uid_map, gid_map
        if maps not in self._namespaces:
            self._namespaces[maps] = _user_namespace(*maps)
        return self._namespaces[maps]


def swapped_id_map(ranges: Iterable[tuple[int, int]], one: int, other: int) -> str:
    """Return an id map that swaps two ids within the ranges, given as first id and count."""
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
    """Return the id ranges of this process's user namespace."""
    lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    return [(int(line.split()[0]), int(line.split()[2])) for line in lines]


def clone_tree(path: str, rights: Rights | None) -> int:
    """Clone the tree at a path, opened with these rights."""
    with acting_as(rights):
        place = mounts.open_strictly(path)
    try:
        return mounts.clone(place)
    finally:
        os.close(place)


def first_closed_dir(path: str, uid: int, root: str = "/") -> str | None:
    """Return the first directory on the path from `root` that the user may not pass, or None."""
    for directory in reversed(Path(path).parents):
        if str(directory) == "/" or not is_within(str(directory), [root]):
            continue
        found = os.stat(directory)
        if not found.st_mode & (0o100 if found.st_uid == uid else 0o001):
            return str(directory)
    return None


def _make(path: str, directory: bool) -> None:
    if os.path.lexists(path):
        return
    os.makedirs(path if directory else os.path.dirname(path), 0o755, exist_ok=True)
    if not directory:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644))


def die_with(parent: int) -> None:
    """Kill this process when its parent dies. Repeat after a change of user or user namespace."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)


def _user_namespace(uid_map: str, gid_map: str) -> int:
    """Create an empty user namespace with these maps and return its descriptor."""
    ready, answer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            mounts.unshare(mounts.CLONE_NEWUSER)
            die_with(parent)
            os.write(answer, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(answer)
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

"""Mount helper: mounts the workspace into a running sandbox, since a warm interpreter starts without one.

The mounts are cloned in the host's namespace, passed as descriptors, and attached in the sandbox's mount namespace,
which only its owner may enter. No path or descriptor of the host reaches the session. An ordinary user may neither
clone mounts nor enter: it clones in its own user namespace and enters as the owner of the sandbox's. This runs in a
process forked while the worker is single-threaded, as entering a user namespace requires.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from replworker.sandbox import identity, mounts, private_mounts
from replworker.sandbox.plan import EMPTY_DIRECTORY, NO_FILE
from replworker.sandbox.rights import Rights
from replworker.sandbox.workspace import SandboxMount

_NS_GET_USERNS = 0xB701
_MOST_BYTES = 256 * 1024


class MountHelper:
    """Single-use helper process of a sandbox.

    `outer` is the pid of its bwrap, `map_to` the session's user under a root broker.
    """

    def __init__(self, outer: int, map_to: int | None) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _run_helper(theirs.fileno(), worker, outer, map_to)
        theirs.close()

    def attach(self, wanted: list[SandboxMount], seconds: float, rights: Rights | None = None) -> str | None:
        """Mount these in order, opened with these rights. Return an error message, or None. The helper exits."""
        try:
            self._ours.send(json.dumps([[[mount.path, mount.kind] for mount in wanted], rights]).encode())
            if not select.select([self._ours], [], [], seconds)[0]:
                return f"mounting took longer than {seconds:g} s"
            answer = self._ours.recv(4096)
        except OSError as error:
            return f"the mounting process: {error.strerror}"
        finally:
            self.stop()
        return (
            answer[1:].decode(errors="replace")
            if answer[:1] == b"!"
            else None
            if answer
            else "the mounting process died"
        )

    def stop(self) -> None:
        """Kill the helper and reap it."""
        if self._pid:
            self._ours.close()
            try:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            except (ProcessLookupError, ChildProcessError):  # reaped elsewhere
                pass
            self._pid = 0


def _run_helper(fd: int, worker: int, outer: int, map_to: int | None) -> NoReturn:
    try:
        private_mounts.die_with(worker)
        os.dup2(fd, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        asked = socket.socket(fileno=3)
        owners = None if map_to is None else _prefetch_namespace(private_mounts.IdMapper(map_to))
        order = asked.recv(_MOST_BYTES)
        if order:
            wanted, rights = json.loads(order)
            asked.send(_mount_all(wanted, None if rights is None else Rights(*rights), outer, map_to, owners).encode())
    finally:
        os._exit(0)


def _prefetch_namespace(owners: private_mounts.IdMapper) -> private_mounts.IdMapper:
    """Create the namespace of the broker's own user in advance, since most directories need it."""
    try:
        owners.user_namespace(os.geteuid(), os.getegid())
    except OSError:
        pass  # reported if a directory needs it
    return owners


def _mount_all(
    wanted: list[tuple[str, str]],
    rights: Rights | None,
    outer: int,
    map_to: int | None,
    owners: private_mounts.IdMapper | None,
) -> str:
    try:
        sandbox = os.open(f"/proc/{_sandbox_init_pid(outer)}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        if map_to is None:
            trees = _clone_in_userns(wanted)
        else:
            trees = [_clone_mount(path, kind, owners, rights) for path, kind in wanted]
            identity.drop_to_user(map_to)
        mounts.enter(fcntl.ioctl(sandbox, _NS_GET_USERNS))
        mounts.enter(sandbox)
        os.chdir("/")
        for (path, kind), tree in zip(wanted, trees, strict=True):
            _attach_mount(path, kind, tree)
    except OSError as error:
        return f"!{error.strerror or error}"
    return "."


def _sandbox_init_pid(outer: int) -> int:
    """Return the sandbox's first process: the only child of its bwrap."""
    with open(f"/proc/{outer}/task/{outer}/children", "rb") as file:
        pids = file.read().split()
    if not pids:
        raise OSError(3, "the sandbox has exited")
    return int(pids[0])


def _clone_mount(
    path: str, kind: str, owners: private_mounts.IdMapper | None, rights: Rights | None = None
) -> int | None:
    """Clone a tree to be mounted; None for paths that get a cover of the sandbox's own."""
    if kind.startswith("hidden"):
        return None
    tree = private_mounts.clone_tree(path, rights)
    if owners is not None:
        owners.map_tree(tree, rights)
    mounts.restrict(tree, read_only=kind == "readable")
    return tree


def _attach_mount(path: str, kind: str, tree: int | None) -> None:
    directory = kind == "hidden-directory"
    if tree is None:
        tree = _clone_mount(EMPTY_DIRECTORY if directory else NO_FILE, "readable", None)
        assert tree is not None
    else:
        directory = stat.S_ISDIR(os.fstat(tree).st_mode)
    mounts.make_mount_point(path, directory)
    mounts.attach(tree, path)


def _clone_in_userns(wanted: list[tuple[str, str]]) -> list[int | None]:
    """Clone the trees in a child process with its own user namespace, where an ordinary user may."""
    with _socket_pair() as (ours, theirs):
        pid = os.fork()
        if pid == 0:
            _clone_child(wanted, theirs)
        theirs.close()
        said, fds = _receive_fds(ours, sum(not kind.startswith("hidden") for _, kind in wanted))
        os.waitpid(pid, 0)
    if said[:1] != b".":
        raise OSError(1, said[1:].decode(errors="replace") or "no user namespace to clone mounts in")
    waiting = iter(fds)
    return [None if kind.startswith("hidden") else next(waiting) for _, kind in wanted]


def _clone_child(wanted: list[tuple[str, str]], answer: socket.socket) -> NoReturn:
    try:
        uid, gid = os.getuid(), os.getgid()
        mounts.unshare(mounts.CLONE_NEWUSER | mounts.CLONE_NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        trees = [_clone_mount(path, kind, None) for path, kind in wanted]
        socket.send_fds(answer, [b"."], [tree for tree in trees if tree is not None])
    except OSError as error:
        answer.send(f"!{error.strerror or error}".encode())
    finally:
        os._exit(0)


@contextmanager
def _socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def _receive_fds(connection: socket.socket, most: int) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(4 * max(most, 1)))
    fds: list[int] = []
    for level, kind, payload in ancillary:
        found: tuple[Any, ...] = (level, kind)
        if found == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"={len(payload) // 4}i", payload)
    return data, fds

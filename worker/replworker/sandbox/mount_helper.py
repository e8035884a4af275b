"""Mount helper: completes a running sandbox, since a warm interpreter starts without workspace and network.

The mounts are cloned in the host's namespace, passed as descriptors, and attached in the sandbox's mount namespace,
which only its owner may enter. Listening sockets for the egress proxy are opened in its network namespace and passed
out. No path or descriptor of the host reaches the session. An ordinary user may neither
clone mounts nor enter: it clones in its own user namespace and enters as the owner of the sandbox's. This runs in a
process forked while the worker is single-threaded, as entering a user namespace requires.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import msgspec

from replworker.egress.listeners import Listener
from replworker.sandbox import identity, mounts, namespace_sockets, private_mounts
from replworker.sandbox.plan import EMPTY_DIRECTORY, NO_FILE
from replworker.sandbox.rights import Rights
from replworker.sandbox.workspace import SandboxMount

_MOST_BYTES = 256 * 1024


class AttachResult(NamedTuple):
    """Result of completing a sandbox: why it failed, or None, and the listening sockets in its network namespace."""

    error: str | None
    sockets: list[socket.socket]


class _MountRequest(msgspec.Struct, frozen=True, array_like=True):
    """Order for the helper."""

    mounts: list[tuple[str, str]]
    rights: Any
    listeners: list[Listener]


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

    def attach(
        self,
        wanted: list[SandboxMount],
        seconds: float,
        rights: Rights | None = None,
        listeners: Sequence[Listener] = (),
    ) -> AttachResult:
        """Mount these in order, opened with these rights, and open these sockets; `stop` reaps the helper then."""
        try:
            request = _MountRequest([(mount.path, mount.kind) for mount in wanted], rights, list(listeners))
            self._ours.send(msgspec.json.encode(request))
            if not select.select([self._ours], [], [], seconds)[0]:
                self.stop()
                return AttachResult(f"mounting took longer than {seconds:g} s", [])
            answer, fds = _receive_fds(self._ours, len(listeners))
        except OSError as error:
            return AttachResult(f"the mounting process: {error.strerror}", [])
        finally:
            self.dismiss()
        if answer[:1] == b"!":
            return AttachResult(answer[1:].decode(errors="replace"), [])
        return AttachResult(None if answer else "the mounting process died", [socket.socket(fileno=fd) for fd in fds])

    @property
    def is_dismissed(self) -> bool:
        """True if it takes no order any more."""
        return self._ours.fileno() < 0

    def dismiss(self) -> None:
        """Let the helper exit; `stop` reaps it."""
        self._ours.close()

    def stop(self) -> None:
        """Kill the helper and reap it, which takes milliseconds."""
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
        data = asked.recv(_MOST_BYTES)
        if data:
            request = msgspec.json.decode(data, type=_MountRequest)
            try:
                fds = _complete(request, outer, map_to, owners)
                socket.send_fds(asked, [b"."], fds)
            except OSError as error:
                asked.send(f"!{error.strerror or error}".encode())
    finally:
        os._exit(0)


def _prefetch_namespace(owners: private_mounts.IdMapper) -> private_mounts.IdMapper:
    """Create the namespace of the broker's own user in advance, since most directories need it."""
    try:
        owners.user_namespace(os.geteuid(), os.getegid())
    except OSError:
        pass  # reported if a directory needs it
    return owners


def _complete(
    request: _MountRequest, outer: int, map_to: int | None, owners: private_mounts.IdMapper | None
) -> list[int]:
    """Mount and open what is requested; return the sockets."""
    inside = f"/proc/{_sandbox_init_pid(outer)}/ns"
    sandbox = os.open(f"{inside}/mnt", os.O_RDONLY | os.O_CLOEXEC)
    network = os.open(f"{inside}/net", os.O_RDONLY | os.O_CLOEXEC) if request.listeners else -1
    rights = None if request.rights is None else Rights(*request.rights)
    if map_to is None:
        trees = _clone_in_userns(request.mounts) if request.mounts else []
    else:
        trees = [_clone_mount(path, kind, owners, rights) for path, kind in request.mounts]
        identity.drop_to_user(map_to)
    mounts.enter(namespace_sockets.owner_of(sandbox))
    mounts.enter(sandbox)
    os.chdir("/")
    for (path, kind), tree in zip(request.mounts, trees, strict=True):
        _attach_mount(path, kind, tree)
    return namespace_sockets.open_listeners(network, request.listeners) if request.listeners else []


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
        answer, fds = _receive_fds(ours, sum(not kind.startswith("hidden") for _, kind in wanted))
        os.waitpid(pid, 0)
    if answer[:1] != b".":
        raise OSError(1, answer[1:].decode(errors="replace") or "no user namespace to clone mounts in")
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
    space = socket.CMSG_SPACE(4 * max(most, 1))
    data, ancillary, _, _ = connection.recvmsg(4096, space, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        found: tuple[Any, ...] = (level, kind)
        if found == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"={len(payload) // 4}i", payload)
    return data, fds

"""The addresses a broker may listen on: checked, locked for it alone, and tidied up behind it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from replbroker.file_lock import AlreadyLocked, FileLock
from replwire.paths import ipc_path
from replwire.private_directories import make_private_directory

_LOOPBACK = ("127.", "localhost", "[::1]")
_BACKLOG = 100  # connections that were not taken yet
_FIRST_SYSTEMD_FD = 3  # sd_listen_fds(3)


class StartError(Exception):
    """The broker cannot start here; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """An endpoint that is ours."""

    url: str
    path: Path | None  # the socket file of an ipc endpoint, where it is ours to remove
    lock: FileLock | None = None
    fd: int = -1  # listens already

    def release(self) -> None:
        """Remove the socket file, unless it is another's by now."""
        if self.path is not None and self.lock is not None:
            if self.lock.is_held():
                self.path.unlink(missing_ok=True)
            self.lock.close()


def lock_endpoint(url: str, timeout_s: float) -> BrokerEndpoint:
    """Make sure that we may listen here and are the only one; wait this long for one that is just ending.

    Raises StartError.
    """
    if url.startswith("tcp://"):
        return BrokerEndpoint(url, None)
    try:
        path = ipc_path(url)
    except ValueError as error:
        raise StartError(str(error)) from None
    if path is None:
        raise StartError(f"{url}: not an ipc:// or tcp:// endpoint")
    ensure_private_dir(Path(path).parent)
    return BrokerEndpoint(url, Path(path), acquire_endpoint_lock(f"{path}.lock", timeout_s, url))


def acquire_endpoint_lock(path: str, timeout_s: float, url: str) -> FileLock:
    """The lock file of a broker at this endpoint. Raises StartError."""
    try:
        return FileLock(path, timeout_s)
    except AlreadyLocked:
        raise StartError(f"{url}: another broker has it") from None
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None


def open_listening_fd(url: str) -> int:
    """Return a descriptor that listens there, or -1 where libzmq has to make one: for a network interface.

    Raises:
        StartError: Nobody can listen there.
    """
    try:
        if url.startswith("ipc://"):
            return _listen_at_path(url.removeprefix("ipc://"))
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        family, address = _resolved(host, port)
        return -1 if address is None else _listen_at_port(family, address)
    except OSError as error:
        raise StartError(f"cannot listen on {url}: {error.strerror}") from None


def _resolved(host: str, port: str) -> tuple[socket.AddressFamily, tuple[object, ...] | None]:
    """Return the family and address of a TCP endpoint; no address where libzmq alone knows what is meant.

    A host name means its IPv4 address where it has one.
    """
    if not port.isdigit():
        return socket.AF_INET, None
    host = "0.0.0.0" if host == "*" else host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except socket.gaierror:
        return socket.AF_INET, None
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, address


def _listen_at_port(family: socket.AddressFamily, address: tuple[object, ...]) -> int:
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        return listener.detach()


def _listen_at_path(path: str) -> int:
    """In the place of what is there. libzmq could make one, but takes the file away at its end, whosoever it is by
    then."""
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as listener:
        listener.bind(path)
        listener.listen(_BACKLOG)
        return listener.detach()


def systemd_sockets(environ: Mapping[str, str], pid: int) -> list[BrokerEndpoint]:
    """Sockets that systemd listens at for us: sd_listen_fds(3). Raises StartError for one that is no use."""
    if environ.get("LISTEN_PID") != str(pid):
        return []
    return [
        _inherited_socket(fd)
        for fd in range(_FIRST_SYSTEMD_FD, _FIRST_SYSTEMD_FD + int(environ.get("LISTEN_FDS", "0")))
    ]


def _inherited_socket(fd: int) -> BrokerEndpoint:
    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)
    with socket.socket(fileno=os.dup(fd)) as found:
        family, name = found.family, found.getsockname()
        if found.type == socket.SOCK_STREAM and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            if family == socket.AF_UNIX and isinstance(name, str) and name:
                return BrokerEndpoint(f"ipc://{name}", None, fd=fd)
            if family in (socket.AF_INET, socket.AF_INET6):
                host = f"[{name[0]}]" if family == socket.AF_INET6 else name[0]
                return BrokerEndpoint(f"tcp://{host}:{name[1]}", None, fd=fd)
    raise StartError(f"the socket that was passed as descriptor {fd} is no stream that listens at a path or a port")


def is_loopback(url: str) -> bool:
    """Whether only this machine can reach a tcp endpoint."""
    return url.removeprefix("tcp://").startswith(_LOOPBACK)


def ensure_private_dir(directory: Path) -> None:
    """Have a folder that is ours, and that nobody else may enter. Raises StartError when there is one that is not."""
    try:
        make_private_directory(directory)
        found = directory.stat()
    except OSError as error:
        raise StartError(f"{directory}: {error.strerror}") from None
    if found.st_uid != os.geteuid():  # who could put a socket of its own in the place of ours
        raise StartError(f"{directory}: it belongs to another user (uid {found.st_uid})")
    if mode := found.st_mode & 0o077:
        raise StartError(f"{directory}: others may enter it (mode {mode:03o} too much); chmod 700 it")

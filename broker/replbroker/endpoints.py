"""Addresses a broker may listen on: checked, locked for one broker, and cleaned up at its end."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from replbroker.file_lock import AlreadyLocked, FileLock
from replwire.loopback import is_loopback_host
from replwire.paths import ipc_path
from replwire.private_directories import make_private_directory

_BACKLOG = 100  # connections that were not accepted yet
_FIRST_SYSTEMD_FD = 3  # sd_listen_fds(3)


class StartError(Exception):
    """The broker cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """An endpoint of this broker.

    Attributes:
        url: Address for clients.
        path: The socket file of an ipc endpoint, where this broker is to delete it.
        lock: The lock of an ipc endpoint.
        fd: A descriptor that listens already, or -1.
    """

    url: str
    path: Path | None
    lock: FileLock | None = None
    fd: int = -1

    def release(self) -> None:
        """Release the lock, and delete the socket file unless another broker has taken it over."""
        if self.path is not None and self.lock is not None:
            if self.lock.is_held():
                self.path.unlink(missing_ok=True)
            self.lock.close()


def lock_endpoint(url: str, timeout_s: float) -> BrokerEndpoint:
    """Check an endpoint and lock it for this broker.

    Args:
        url: `ipc://PATH` or `tcp://HOST:PORT`.
        timeout_s: Seconds to wait for a broker there that is about to end.

    Raises:
        StartError: The endpoint is malformed, or another broker has it.
    """
    if url.startswith("tcp://"):
        return _open_free_port(url) if url.endswith(":0") else BrokerEndpoint(url, None)
    try:
        path = ipc_path(url)
    except ValueError as error:
        raise StartError(str(error)) from None
    if path is None:
        raise StartError(f"{url}: not an ipc:// or tcp:// endpoint")
    ensure_private_dir(Path(path).parent)
    return BrokerEndpoint(url, Path(path), acquire_endpoint_lock(f"{path}.lock", timeout_s, url))


def _open_free_port(url: str) -> BrokerEndpoint:
    """Listen at a port that the kernel chooses.

    Raises:
        StartError: The address cannot be listened on.
    """
    fd = open_listening_fd(url)
    if fd < 0:
        raise StartError(f"{url}: port 0 needs an address of this machine, as tcp://127.0.0.1:0")
    with socket.socket(fileno=os.dup(fd)) as listener:
        port = listener.getsockname()[1]
    return BrokerEndpoint(f"{url.removesuffix(':0')}:{port}", None, fd=fd)


def acquire_endpoint_lock(path: str, timeout_s: float, url: str) -> FileLock:
    """Acquire a lock file of the broker at this endpoint.

    Raises:
        StartError: Another broker holds the lock, or the file cannot be locked.
    """
    try:
        return FileLock(path, timeout_s)
    except AlreadyLocked:
        raise StartError(f"{url}: another broker has it") from None
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None


def open_listening_fd(url: str) -> int:
    """Open a descriptor that listens at an endpoint.

    Returns:
        The descriptor, or -1 where libzmq has to open it: for a network interface.

    Raises:
        StartError: The endpoint cannot be listened on.
    """
    try:
        if url.startswith("ipc://"):
            return _listen_at_path(url.removeprefix("ipc://"))
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        family, address = _resolve(host, port)
        return -1 if address is None else _listen_at_port(family, address)
    except OSError as error:
        raise StartError(f"cannot listen on {url}: {error.strerror}") from None


def _resolve(host: str, port: str) -> tuple[socket.AddressFamily, tuple[object, ...] | None]:
    """Return family and address of a TCP endpoint; no address where only libzmq knows what is meant.

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
    """Listen at a socket file, replacing what is there.

    libzmq could do this itself, but at its end it would delete the file even if another broker has taken it over.
    """
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as listener:
        listener.bind(path)
        listener.listen(_BACKLOG)
        return listener.detach()


def systemd_sockets(environ: Mapping[str, str], pid: int) -> list[BrokerEndpoint]:
    """Return the endpoints that systemd listens at for this process: sd_listen_fds(3).

    Raises:
        StartError: A passed socket cannot be used.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return []
    count = int(environ.get("LISTEN_FDS", "0"))
    return [_inherited_socket(fd) for fd in range(_FIRST_SYSTEMD_FD, _FIRST_SYSTEMD_FD + count)]


def pass_systemd_sockets(environ: Mapping[str, str], pid: int) -> None:
    """Leave the sockets of systemd open in the program that takes the place of this one."""
    if environ.get("LISTEN_PID") == str(pid):
        for fd in range(_FIRST_SYSTEMD_FD, _FIRST_SYSTEMD_FD + int(environ.get("LISTEN_FDS", "0"))):
            os.set_inheritable(fd, True)


def _inherited_socket(fd: int) -> BrokerEndpoint:
    """Return an endpoint with a descriptor of its own for libzmq, which closes it at the end."""
    os.set_inheritable(fd, False)
    os.set_blocking(fd, False)
    with socket.socket(fileno=os.dup(fd)) as found:
        family, name = found.family, found.getsockname()
        if found.type == socket.SOCK_STREAM and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            if family == socket.AF_UNIX and isinstance(name, str) and name:
                return BrokerEndpoint(f"ipc://{name}", None, fd=os.dup(fd))
            if family in (socket.AF_INET, socket.AF_INET6):
                host = f"[{name[0]}]" if family == socket.AF_INET6 else name[0]
                return BrokerEndpoint(f"tcp://{host}:{name[1]}", None, fd=os.dup(fd))
    raise StartError(f"the socket passed as descriptor {fd} is not a stream socket listening at a path or a port")


def is_loopback(url: str) -> bool:
    """Return whether only this machine can reach a tcp endpoint."""
    return is_loopback_host(url.removeprefix("tcp://").rpartition(":")[0])


def ensure_private_dir(directory: Path) -> None:
    """Create a directory that only this user may enter, or check an existing one.

    Raises:
        StartError: It cannot be created, belongs to another user, or others may enter it.
    """
    try:
        make_private_directory(directory)
        found = directory.stat()
    except OSError as error:
        raise StartError(f"{directory}: {error.strerror}") from None
    if found.st_uid != os.geteuid():  # its owner could replace the socket
        raise StartError(f"{directory}: it belongs to another user (uid {found.st_uid})")
    if mode := found.st_mode & 0o077:
        raise StartError(f"{directory}: others may enter it (mode {mode:03o} too much); chmod 700 it")

"""Listening sockets for line clients; connections are accepted in transports/line_server."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from replbroker.endpoints import StartError, ensure_private_dir

_KEEPALIVE_S = 60  # idle time after which the kernel checks that a line client is still there


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A bound socket.

    Attributes:
        socket: The socket.
        url: Address for clients.
        warning: What the operator should be warned of, if anything.
        path: The socket file of a Unix socket.
    """

    socket: socket.socket
    url: str
    warning: str | None = None
    path: Path | None = None

    def remove(self) -> None:
        """Close the socket and delete its file."""
        self.socket.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def listen_tcp(address: str) -> ListeningSocket:
    """Listen at HOST:PORT; port 0 takes a free one.

    Raises:
        StartError: The address is malformed or cannot be listened on.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{address}: not HOST:PORT")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these. A reader of events whose machine has vanished looks like one that only listens,
        # until the kernel checks.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S // 6)
        listener.bind((host, int(port)))
        listener.listen()  # fails where bind does not: when a socket with SO_REUSEADDR listens there
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on tcp {address}: {error.strerror or error}") from None
    shown = f"[{host}]" if ":" in host else host
    warning = None
    if not (host.startswith("127.") or host in ("::1", "localhost")):
        warning = (
            f"{address} is non-loopback: traffic is not encrypted, and clients have to show a token "
            "(replctl keys token)"
        )
    return ListeningSocket(listener, f"lines+tcp://{shown}:{listener.getsockname()[1]}", warning)


def listen_unix(path: str) -> ListeningSocket:
    """Listen at a socket file of mode 0600. A stale file is replaced, never a live one or another kind of file.

    Raises:
        StartError: The path is taken or cannot be listened on.
    """
    file = Path(path).absolute()
    ensure_private_dir(file.parent)
    remove_stale_socket(file)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        listener.bind(str(file))
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {file}: {error.strerror or error}") from None
    finally:
        os.umask(mask)
    return ListeningSocket(listener, f"lines+unix://{file}", path=file)


def remove_stale_socket(path: Path) -> None:
    """Delete a socket file that nobody listens at.

    Raises:
        StartError: Somebody listens there, or the file is not a socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{path}: the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise StartError(f"{path}: {error.strerror or error}") from None
    raise StartError(f"{path}: another process listens there")

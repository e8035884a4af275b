"""Sockets for line clients: bound here, accepted in transports/streams."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from replbroker.endpoints import StartError, ensure_private_dir

_KEEPALIVE_S = 60  # after that a line client is asked whether it is there


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A bound socket, how to say where it is, and what to warn of."""

    socket: socket.socket
    url: str
    warning: str | None = None
    path: Path | None = None

    def remove(self) -> None:
        """Close it, and take its file away."""
        self.socket.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def listen_tcp(address: str) -> ListeningSocket:
    """Listen at HOST:PORT; port 0 takes a free one. Raises StartError."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise StartError(f"{address}: not HOST:PORT")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Its connections have these from here. A reader of events that is gone looks like one that only says no more,
        # until it is asked.
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S // 6)
        door.bind((host, int(port)))
        door.listen()  # where the address is taken by a socket that may share it, this says so and not the bind
    except OSError as error:
        door.close()
        raise StartError(f"cannot listen on tcp {address}: {error.strerror or error}") from None
    shown = f"[{host}]" if ":" in host else host
    warning = None
    if not (host.startswith("127.") or host in ("::1", "localhost")):
        warning = f"{address} is non-loopback: nothing is encrypted there; clients show a token (replctl keys token)"
    return ListeningSocket(door, f"lines+tcp://{shown}:{door.getsockname()[1]}", warning)


def listen_unix(path: str) -> ListeningSocket:
    """Listen at a socket file (0600). A stale one is replaced, a live one or another kind of file never.

    Raises StartError.
    """
    place = Path(path).absolute()
    ensure_private_dir(place.parent)
    remove_stale_socket(place)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        door.bind(str(place))
    except OSError as error:
        door.close()
        raise StartError(f"cannot listen on {place}: {error.strerror or error}") from None
    finally:
        os.umask(mask)
    return ListeningSocket(door, f"lines+unix://{place}", path=place)


def remove_stale_socket(path: Path) -> None:
    """Take a stale socket file away. Raises StartError for a live one and for another kind of file."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise StartError(f"{path}: there is a file, and it is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise StartError(f"{path}: {error.strerror or error}") from None
    raise StartError(f"{path}: somebody listens there")

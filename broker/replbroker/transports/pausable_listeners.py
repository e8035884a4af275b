"""Listeners of ZeroMQ that are made to take no more connections for a while. libzmq accepts whatever comes, ends the
process where it finds no descriptor for it, and closes all connections with a listener that is unbound; so the kernel
is asked to bring none."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import Protocol

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one instruction: ret 0
_BACKLOG = 128


class PausableListener(Protocol):
    """A listener that can be held."""

    def pause(self) -> None:
        """Bring no more connections. Raises OSError."""

    def resume(self) -> None:
        """Bring them again. Raises OSError."""

    def refresh(self) -> None:
        """There is another listener at its path by now."""

    def close(self) -> None:
        """Leave nothing behind."""


class PausablePathListener:
    """A Unix socket. While it is held another one is at its path, where clients wait; then they are sent back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._backup_link = Path(f"{path}.kept")
        self._waiting_socket: socket.socket | None = None
        self.refresh()

    def refresh(self) -> None:
        self._backup_link.unlink(missing_ok=True)
        os.link(self._path, self._backup_link)

    def pause(self) -> None:
        aside = f"{self._path}.aside"
        Path(aside).unlink(missing_ok=True)
        waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            waiting.bind(aside)
            os.chmod(aside, self._backup_link.stat().st_mode & 0o777)
            waiting.listen(_BACKLOG)
            os.rename(aside, self._path)
        except OSError:
            waiting.close()
            raise
        self._waiting_socket = waiting

    def resume(self) -> None:
        aside = f"{self._path}.aside"
        Path(aside).unlink(missing_ok=True)
        os.link(self._backup_link, aside)
        os.rename(aside, self._path)
        if self._waiting_socket is not None:
            self._waiting_socket.close()
            self._waiting_socket = None

    def close(self) -> None:
        self._backup_link.unlink(missing_ok=True)
        if self._waiting_socket is not None:
            self._waiting_socket.close()


class PausablePortListener:
    """A TCP socket that listens. While it is held a filter has the kernel drop requests to connect; who asks goes
    on asking, as TCP does."""

    def __init__(self, fd: int) -> None:
        self._listener = socket.socket(fileno=os.dup(fd))

    def pause(self) -> None:
        program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        given = struct.pack("HL", 1, ctypes.addressof(program))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, given)

    def resume(self) -> None:
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def refresh(self) -> None:
        """A port has no file."""

    def close(self) -> None:
        self._listener.close()

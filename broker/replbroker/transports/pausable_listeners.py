"""ZeroMQ listeners that can be paused.

libzmq accepts whatever comes, aborts the process when it finds no descriptor for a connection, and closes every
connection of a listener that is unbound. So pausing is done in the kernel, which then delivers no connections.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path
from typing import Protocol

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one BPF instruction: ret 0
_BACKLOG = 128


class PausableListener(Protocol):
    """A listener that can be paused."""

    def pause(self) -> None:
        """Deliver no more connections. Raises OSError."""

    def resume(self) -> None:
        """Deliver connections again. Raises OSError."""

    def refresh(self) -> None:
        """Adopt the listener that is bound at this address by now. Raises OSError."""

    def close(self) -> None:
        """Release descriptors and files."""


class PausablePathListener:
    """Unix socket. While it is paused, clients wait at another socket in its place, which then sends them back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._backup_link = Path(f"{path}.kept")
        self._waiting_socket: socket.socket | None = None
        self.refresh()

    def refresh(self) -> None:
        self._backup_link.unlink(missing_ok=True)
        os.link(self._path, self._backup_link)

    def pause(self) -> None:
        temporary = f"{self._path}.aside"
        Path(temporary).unlink(missing_ok=True)
        waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            waiting.bind(temporary)
            os.chmod(temporary, self._backup_link.stat().st_mode & 0o777)
            waiting.listen(_BACKLOG)
            os.rename(temporary, self._path)
        except OSError:
            waiting.close()
            raise
        self._waiting_socket = waiting

    def resume(self) -> None:
        temporary = f"{self._path}.aside"
        Path(temporary).unlink(missing_ok=True)
        os.link(self._backup_link, temporary)
        os.rename(temporary, self._path)
        if self._waiting_socket is not None:
            self._waiting_socket.close()
            self._waiting_socket = None

    def close(self) -> None:
        self._backup_link.unlink(missing_ok=True)
        if self._waiting_socket is not None:
            self._waiting_socket.close()


class PausablePortListener:
    """TCP socket. While it is paused, a filter drops connection requests; clients repeat them, as TCP does."""

    def __init__(self, fd: int) -> None:
        self._listener = socket.socket(fileno=os.dup(fd))

    def pause(self) -> None:
        program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        argument = struct.pack("HL", 1, ctypes.addressof(program))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, argument)

    def resume(self) -> None:
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def refresh(self) -> None:
        """Do nothing: a port has no file that could vanish."""

    def close(self) -> None:
        self._listener.close()

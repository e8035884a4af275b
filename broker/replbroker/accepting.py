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
_QUEUE = 128


class HeldListener(Protocol):
    """A listener that can be held."""

    def stop(self) -> None:
        """Bring no more connections. Raises OSError."""

    def resume(self) -> None:
        """Bring them again. Raises OSError."""

    def renew(self) -> None:
        """There is another listener at its path by now."""

    def close(self) -> None:
        """Leave nothing behind."""


class PathListener:
    """A Unix socket. While it is held another one is at its path, where clients wait; then they are sent back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = Path(f"{path}.kept")
        self._waiting: socket.socket | None = None
        self.renew()

    def renew(self) -> None:
        self._kept.unlink(missing_ok=True)
        os.link(self._path, self._kept)

    def stop(self) -> None:
        aside = f"{self._path}.aside"
        Path(aside).unlink(missing_ok=True)
        waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            waiting.bind(aside)
            os.chmod(aside, self._kept.stat().st_mode & 0o777)
            waiting.listen(_QUEUE)
            os.rename(aside, self._path)
        except OSError:
            waiting.close()
            raise
        self._waiting = waiting

    def resume(self) -> None:
        aside = f"{self._path}.aside"
        Path(aside).unlink(missing_ok=True)
        os.link(self._kept, aside)
        os.rename(aside, self._path)
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    def close(self) -> None:
        self._kept.unlink(missing_ok=True)
        if self._waiting is not None:
            self._waiting.close()


class PortListener:
    """A TCP socket that listens. While it is held a filter has the kernel drop requests to connect; who asks goes
    on asking, as TCP does."""

    def __init__(self, fd: int) -> None:
        self._listener = socket.socket(fileno=os.dup(fd))

    def stop(self) -> None:
        program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        given = struct.pack("HL", 1, ctypes.addressof(program))
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, given)

    def resume(self) -> None:
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)

    def renew(self) -> None:
        """A port has no file."""

    def close(self) -> None:
        self._listener.close()

"""Descriptors sent by the worker beside a frame."""

from __future__ import annotations

import _socket
import os
import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

__builtins__ = SEALED

_CLOEXEC = 0x40000000  # MSG_CMSG_CLOEXEC


class NoDescriptor(Exception):
    """A frame arrived without its descriptor."""


class ReceivedDescriptor:
    """Descriptor that came with a frame, closed at the end. Of several, the last is used."""

    def __init__(self, parcel_fd: int) -> None:
        self._fds: List[int] = []
        sock = _socket.socket(fileno=parcel_fd)
        try:
            while self._receive(sock):
                pass
        finally:
            sock.detach()

    def _receive(self, sock: Any) -> bool:
        try:
            data, parts, _, _ = sock.recvmsg(1, _socket.CMSG_SPACE(4), _socket.MSG_DONTWAIT | _CLOEXEC)
        except OSError:
            return False
        for level, kind, content in parts:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                self._fds += [int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, len(content), 4)]
        return bool(data)

    def __enter__(self) -> int:
        for fd in self._fds[:-1]:
            os.close(fd)
        del self._fds[:-1]
        if not self._fds:
            raise NoDescriptor("no descriptor received")
        return self._fds[0]

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)

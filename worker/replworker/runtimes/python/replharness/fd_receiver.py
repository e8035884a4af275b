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
_NUMBER_BYTES = 20


class NoDescriptor(Exception):
    """A frame arrived without its descriptor."""


class ReceivedDescriptor:
    """Descriptor that came with the frame of a number, closed at the end. Those of earlier frames are dropped."""

    def __init__(self, transfer_fd: int, number: int) -> None:
        self._fds: List[int] = []
        sock = _socket.socket(fileno=transfer_fd)
        try:
            while not self._receive(sock, b"%d" % number):
                self._close()
        finally:
            sock.detach()

    def _receive(self, sock: Any, wanted: bytes) -> bool:
        """Receive one descriptor. Return whether it is the last to receive."""
        try:
            data, parts, _, _ = sock.recvmsg(_NUMBER_BYTES, _socket.CMSG_SPACE(4), _socket.MSG_DONTWAIT | _CLOEXEC)
        except OSError:
            return True
        for level, kind, content in parts:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                self._fds += [int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, len(content), 4)]
        return data in (wanted, b"")

    def __enter__(self) -> int:
        if not self._fds:
            raise NoDescriptor("no descriptor received")
        return self._fds[0]

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

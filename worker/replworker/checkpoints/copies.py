"""Waiting copies of an interpreter, each behind a socket of its own (see replharness/checkpoint.py)."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

from replwire.limits import KIB

_CREDENTIALS = struct.Struct("=3i")  # pid, uid, gid
_OOM_SCORE = 500  # an interpreter's is higher: the kernel ends it first, and the session goes on from a copy
_ROLLUP_BYTES = 8192


class WaitingCopy:
    """A copy, from the request for it to its end, which comes when each of its owners has closed it."""

    def __init__(self) -> None:
        self._owners = 1
        self._socket, self.inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.pid = 0  # until it waits
        self._pidfd: int | None = None

    def fileno(self) -> int:
        """Return the descriptor that is readable when `read` has work."""
        return self._socket.fileno()

    def read(self) -> bool:
        """Note that the copy waits. Return False if it has ended."""
        try:
            data, ancillary, _, _ = self._socket.recvmsg(16, socket.CMSG_SPACE(_CREDENTIALS.size))
        except BlockingIOError:
            return True
        except OSError:
            return False
        for _, kind, payload in ancillary:
            if kind == socket.SCM_CREDENTIALS and self._pidfd is None and data:
                self._set_pid(_CREDENTIALS.unpack(payload)[0])
        return bool(data)

    def _set_pid(self, pid: int) -> None:
        try:
            self._pidfd, self.pid = os.pidfd_open(pid), pid
            with open(f"/proc/{pid}/oom_score_adj", "w") as file:
                file.write(str(_OOM_SCORE))
        except OSError:  # it has ended since, or its score may not be lowered
            pass

    def wait_until_ready(self, seconds: float) -> bool:
        """Wait for a copy that is being made. Return False if there is none."""
        while not self.pid:
            if not select.select([self._socket], [], [], seconds)[0] or not self.read():
                return False
        return True

    def wake(self, fds: list[int]) -> bool:
        """Start an interpreter with these descriptors; the copy goes on waiting. Return False if it has ended."""
        if self._pidfd is not None:
            with suppress(OSError):  # the session may have stopped it
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
        try:
            socket.send_fds(self._socket, [b"wake"], fds)
        except OSError:
            return False
        return True

    def own_bytes(self) -> int | None:
        """Return the memory that this copy alone uses, or None if unknown. Takes 27 ms per gigabyte."""
        try:
            with open(f"/proc/{self.pid}/smaps_rollup", "rb") as file:
                lines = file.read(_ROLLUP_BYTES).splitlines()
        except OSError:
            return None
        return sum(int(line.split()[1]) * KIB for line in lines if line.startswith(b"Private_"))

    def share(self) -> WaitingCopy:
        """Return the copy for another owner."""
        self._owners += 1
        return self

    def close(self) -> None:
        """End the copy, unless it has another owner."""
        self._owners -= 1
        if self._owners:
            return
        if self._pidfd is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = None
        self._socket.close()
        self.inner.close()


class CopySet:
    """Copies by the numbers of their checkpoints. `fd` is readable when `read` has work."""

    def __init__(self) -> None:
        self._copies: dict[int, WaitingCopy] = {}
        self._epoll = select.epoll()
        self.fd: int = self._epoll.fileno()

    def __contains__(self, number: int) -> bool:
        """Return whether a checkpoint has a copy."""
        return number in self._copies

    def __getitem__(self, number: int) -> WaitingCopy:
        """Return the copy of a checkpoint."""
        return self._copies[number]

    def add(self, number: int, copy: WaitingCopy) -> None:
        """Add the copy of a checkpoint."""
        self._copies[number] = copy
        self._epoll.register(copy, select.EPOLLIN)

    def read(self) -> list[int]:
        """Read what copies report; remove those that have ended and return their numbers."""
        ready = {fd for fd, _ in self._epoll.poll(0)}
        ended = [number for number, copy in self._copies.items() if copy.fileno() in ready and not copy.read()]
        for number in ended:
            self.drop(number)
        return ended

    def drop(self, number: int) -> None:
        """End a copy."""
        copy = self._copies.pop(number, None)
        if copy is not None:
            self._epoll.unregister(copy)
            copy.close()

    @property
    def pids(self) -> Iterable[int]:
        """Pids of the copies that wait."""
        return [copy.pid for copy in self._copies.values() if copy.pid]

    def own_bytes(self) -> int:
        """Return the memory that copies alone use; what several share is not counted."""
        return sum(copy.own_bytes() or 0 for copy in self._copies.values())

    def close(self) -> None:
        """End all copies."""
        for number in list(self._copies):
            self.drop(number)
        self._epoll.close()

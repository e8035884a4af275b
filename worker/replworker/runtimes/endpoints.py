"""Channels between a worker and one interpreter: the worker's ends, and the interpreter's until it has them."""

from __future__ import annotations

import fcntl
import os
import select
import socket

_PIPE_BYTES = 1024 * 1024


class Endpoints:
    """Control channel, standard streams and further pipes of one interpreter. The worker's ends are non-blocking.

    `inner` are the interpreter's ends: its standard streams, then the control channel, the pipes for background output
    and stacks, and the socket for descriptors.
    """

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        self.fd_socket, fd_receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, out, err, background, trace = (os.pipe() for _ in range(5))
        self.inner = [stdin[0], out[1], err[1], theirs.detach(), background[1], trace[1], fd_receiver.detach()]
        self.stdin, self.out, self.err, self.background, self.trace = stdin[1], out[0], err[0], background[0], trace[0]
        os.set_blocking(trace[1], False)  # written from a signal handler, which must never wait
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        for end in (out[1], err[1]):
            try:
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except OSError:  # beyond the user's pipe quota: a smaller one works as well
                pass
        for fd in (self.control.fileno(), self.fd_socket.fileno(), *self._pipe_ends()):
            os.set_blocking(fd, False)
        self._pipes = select.epoll()  # checks all three pipes in one call
        for fd in (self.background, self.out, self.err):
            self._pipes.register(fd, select.EPOLLIN)

    @property
    def fds(self) -> tuple[int, ...]:
        """The worker's descriptors that a loop watches."""
        return self.control.fileno(), self.stdin, self.out, self.err, self.background

    def _pipe_ends(self) -> tuple[int, ...]:
        return self.stdin, self.out, self.err, self.background, self.trace

    def readable_pipes(self) -> list[int]:
        """Return the pipes that have data or whose writers have all closed."""
        return [fd for fd, _ in self._pipes.poll(0)]

    def close_inner(self) -> None:
        """Close the interpreter's ends in the worker: another process has them."""
        for fd in self.inner:
            os.close(fd)
        self.inner = []

    def close(self) -> None:
        """Close everything."""
        self.close_inner()
        self.control.close()
        self.fd_socket.close()
        self._pipes.close()
        for fd in self._pipe_ends():
            os.close(fd)

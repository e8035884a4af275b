"""One line connection: its socket, its unread lines and its unsent replies."""

from __future__ import annotations

import select
import socket

from replbroker.transports.dropped import DroppedMessages
from replbroker.transports.peer_identity import peer_credentials
from replwire.line_framing import LineFramer

READ_BYTES = 64 * 1024
_MAX_DRAIN_READS = 16  # reads of what a closing connection has sent


class LineClientConnection:
    """A connection.

    Attributes:
        half_closed: Nothing more is read from it; it may still wait for replies.
        is_broken: Nothing can be sent to it any more; requests that were read are still served.
        is_paused: Nothing is read from it for a while.
        is_queued: It waits for its turn, with a line to serve.
        polled: The epoll mask that is registered, None for none.
    """

    __slots__ = (
        "description",
        "dropped",
        "framer",
        "half_closed",
        "is_broken",
        "is_paused",
        "is_queued",
        "pending",
        "polled",
        "socket",
    )

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        self.socket = sock
        self.description = _describe_socket(sock)
        self.framer = LineFramer(max_bytes)
        self.pending = bytearray()
        self.dropped = DroppedMessages()
        self.half_closed = False
        self.is_broken = False
        self.is_paused = False
        self.is_queued = False
        self.polled: int | None = None

    def poll_mask(self) -> int | None:
        """Return the epoll mask to poll for.

        Nothing is read that may not be served yet; a half-closed connection is polled only for hang-up. None is not
        even that.
        """
        if self.is_paused and not self.pending and not self.half_closed:
            return None
        reads = 0 if self.half_closed or self.is_paused else select.EPOLLIN
        return reads | (select.EPOLLOUT if self.pending else 0)

    def append_drop_notices(self) -> None:
        """Append a notice for each request whose live output was dropped."""
        for notice in self.dropped.take_notices() if self.dropped else ():
            self.pending += notice + b"\n"

    def close(self) -> None:
        """Close the socket after reading what the client has sent.

        If data were left unread, the kernel would reset the connection, and the last replies could be lost.
        """
        try:
            for _ in range(_MAX_DRAIN_READS if self.half_closed else 0):
                if not self.socket.recv(READ_BYTES):
                    break
        except OSError:
            pass
        self.socket.close()


def _describe_socket(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        pid, uid, _ = peer_credentials(sock)
        return f"unix:uid={uid},pid={pid}"
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # closed already
        return "tcp:?"
    return f"tcp:{host}:{port}"

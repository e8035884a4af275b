"""Who may connect (ZAP, RFC 27). Asked of libzmq for every connection, before any message of it is heard.

On ipc the socket's folder (0700) has decided already, and on loopback there is nobody else to ask yet; what
this buys is that libzmq insists on a proper greeting, so that random bytes never arrive as messages.
"""

from __future__ import annotations

import zmq

from replbroker.transports.sockets import readable

_VERSION = b"1.0"


class Zap:
    """The handler. Must be bound before the sockets that ask it."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answer what is asked."""
        while readable(self.socket):
            request = self.socket.recv_multipart(zmq.NOBLOCK)
            request_id = request[1] if len(request) > 1 else b""
            fine = len(request) == 6 and request[0] == _VERSION and request[5] == b"NULL"
            code, text = (b"200", b"OK") if fine else (b"400", b"not accepted")
            self.socket.send_multipart([_VERSION, request_id, code, text, b"", b""], zmq.NOBLOCK)

    def close(self) -> None:
        """Close at once."""
        self.socket.close(0)

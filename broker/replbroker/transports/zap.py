"""Authentication of ZeroMQ clients (ZAP, RFC 27), asked for by libzmq before it delivers a connection's messages.

libzmq repeats the answer with each message of the connection: a number that no other connection has, and the name of
the client's CURVE key. On ipc, and on loopback without keys, the kernel knows the user of the connection.
"""

from __future__ import annotations

from collections.abc import Callable

import zmq
import zmq.utils.z85

from replbroker.loop_parts import Register, Unregister
from replbroker.transports.zmq_sockets import is_readable

_VERSION = b"1.0"


class ZapAuthenticator:
    """ZAP handler; to be created before the sockets that ask it are bound.

    Args:
        context: Context of those sockets.
        name_of: Returns the name of a public key, None for an unknown one.
        on_rejected: Called with the address of a client that is not let in.
        next_number: Returns the number of a connection that is let in.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name_of: Callable[[str], str | None],
        on_rejected: Callable[[str], None],
        next_number: Callable[[], int],
    ) -> None:
        self._name_of = name_of
        self._on_rejected = on_rejected
        self._next_number = next_number
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Register the descriptor of libzmq's requests."""
        register(self.socket.fileno(), self.answer_requests)

    def answer_requests(self) -> None:
        """Answer the requests that wait."""
        while is_readable(self.socket):
            request = self.socket.recv_multipart(zmq.NOBLOCK)
            request_id = request[1] if len(request) > 1 else b""
            name = self._authenticate(request)
            if name is None:
                self._on_rejected(request[3].decode(errors="replace") if len(request) > 3 else "")
            code, text = (b"200", b"OK") if name is not None else (b"400", b"not accepted")
            user_id = b"" if name is None else f"{self._next_number()} {name}".encode()
            self.socket.send_multipart([_VERSION, request_id, code, text, user_id, b""], zmq.NOBLOCK)

    def _authenticate(self, request: list[bytes]) -> str | None:
        """Return the name of the client's key, "" for a client without one, None for one that is not let in."""
        if len(request) < 6 or request[0] != _VERSION:
            return None
        if request[5] == b"NULL" and len(request) == 6:
            return ""
        if request[5] == b"CURVE" and len(request) == 7:
            return self._name_of(zmq.utils.z85.encode(request[6]).decode())
        return None

    def close(self) -> None:
        """Close the socket at once."""
        self.socket.close(0)

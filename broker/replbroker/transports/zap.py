"""Who may connect (ZAP, RFC 27). Asked of libzmq for every connection, before any message of it is heard.

libzmq says our answer again with each message of the connection: a number that no other has had, and the name of the
client's CURVE key. On ipc and loopback without keys the kernel tells whose the connection is.
"""

from __future__ import annotations

from collections.abc import Callable

import zmq
import zmq.utils.z85

from replbroker.transports.zmq_sockets import is_readable

_VERSION = b"1.0"


class ZapAuthenticator:
    """The handler. Must be bound before the sockets that ask it."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name_of: Callable[[str], str | None],
        on_rejected: Callable[[str], None],
        next_number: Callable[[], int],
    ) -> None:
        """`kept_out` is told the address of who is not let in; `number` is asked for each connection that is."""
        self._name_of = name_of
        self._on_rejected = on_rejected
        self._next_number = next_number
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer_requests(self) -> None:
        """Answer what is asked."""
        while is_readable(self.socket):
            request = self.socket.recv_multipart(zmq.NOBLOCK)
            request_id = request[1] if len(request) > 1 else b""
            name = self._authenticate(request)
            if name is None:
                self._on_rejected(request[3].decode(errors="replace") if len(request) > 3 else "")
            code, text = (b"200", b"OK") if name is not None else (b"400", b"not accepted")
            who = b"" if name is None else f"{self._next_number()} {name}".encode()
            self.socket.send_multipart([_VERSION, request_id, code, text, who, b""], zmq.NOBLOCK)

    def _authenticate(self, request: list[bytes]) -> str | None:
        """The name of the key, "" without one, None for who may not come in."""
        if len(request) < 6 or request[0] != _VERSION:
            return None
        if request[5] == b"NULL" and len(request) == 6:
            return ""
        if request[5] == b"CURVE" and len(request) == 7:
            return self._name_of(zmq.utils.z85.encode(request[6]).decode())
        return None

    def close(self) -> None:
        """Close at once."""
        self.socket.close(0)

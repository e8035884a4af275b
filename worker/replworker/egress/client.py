"""A worker's connection to the egress proxy: hands over its sandbox's sockets, again whenever the proxy is another."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

import msgspec

from replwire.network import NetworkRules
from replworker.egress import messages
from replworker.egress.listeners import Listener
from replworker.egress.messages import RulesMessage, ServeMessage

_CONNECT_S = 2.0
_MAX_RECEIVED = 64  # refusals read at once; more of one eval say nothing new
UNAVAILABLE = "the egress proxy cannot be started, so nothing can be reached: the broker's log says why"


class EgressClient:
    """Connection to the proxy that listens at a path.

    The worker keeps the sandbox's sockets open: while one proxy is dead and the next not yet there, connections wait.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._poll = select.epoll()  # its descriptor stays the same when the connection does not
        self._connection: socket.socket | None = None
        self._session = ""
        self._rules = NetworkRules()
        self._listeners: list[Listener] = []
        self._sockets: list[socket.socket] = []

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` has something."""
        return self._poll.fileno()

    def serve(
        self, session: str, rules: NetworkRules, listeners: Sequence[Listener], sockets: Sequence[socket.socket]
    ) -> None:
        """Have these sockets served for a session. Returns before they are: connections wait in their backlogs.

        Raises:
            OSError: the proxy is not there
        """
        self._session, self._rules = session, rules
        self._listeners, self._sockets = [*listeners], [*sockets]
        self._connect()

    def set_rules(self, rules: NetworkRules) -> None:
        """Replace the rules; open connections go on."""
        self._rules = rules
        if self._connection is not None:
            try:
                self._connection.send(messages.encode(RulesMessage(rules)))
            except OSError:
                self._reconnect()

    def receive(self) -> list[str]:
        """Return reasons for what was refused since the last call. Reconnects if the proxy has died."""
        reasons: list[str] = []
        while self._connection is not None and len(reasons) < _MAX_RECEIVED:
            try:
                data = self._connection.recv(messages.MAX_BYTES)
                if not data:
                    raise ConnectionResetError
                reasons.append(messages.decode_refusal(data).reason)
            except BlockingIOError:
                break
            except (OSError, msgspec.MsgspecError):
                self._reconnect()
                if self._connection is None:
                    reasons.append(UNAVAILABLE)
        return reasons

    def close(self) -> None:
        """Close the connection and the sockets: whatever connects from now on is refused."""
        self._disconnect()
        for each in self._sockets:
            each.close()
        self._sockets = []

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(_CONNECT_S)
            connection.connect(self._path)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.MAX_BYTES)
            message = messages.encode(ServeMessage(self._session, self._rules, self._listeners))
            socket.send_fds(connection, [message], [each.fileno() for each in self._sockets])
        except OSError:
            connection.close()
            raise
        connection.setblocking(False)
        self._poll.register(connection, select.EPOLLIN)
        self._connection = connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def _reconnect(self) -> None:
        """Hand the sockets to the next proxy; if there is none, close them, so that nothing waits in vain."""
        self._disconnect()
        try:
            self._connect()
        except OSError:
            self.close()

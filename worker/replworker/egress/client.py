"""A worker's connection to the egress proxy: hands over its sandbox's sockets, again whenever the proxy is another."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

import msgspec

from replwire.network import NetworkRules
from replwire.secret_entries import Placeholder
from replworker.egress import messages
from replworker.egress.listeners import Listener
from replworker.egress.messages import AuthorityReply, AuthorityRequest, RulesMessage, ServeMessage

_CONNECT_S = 2.0
_AUTHORITY_S = 30.0  # secrets are read first, by programs that may take their time
_MAX_RECEIVED = 64  # refusals read at once; more of one eval say nothing new
UNAVAILABLE = "the egress proxy cannot be started, so nothing can be reached: the broker's log says why"


def fetch_authority(path: str) -> AuthorityReply:
    """Have the proxy that listens at a path make a certificate authority. Waits for a proxy that is starting.

    Raises:
        OSError: there is no proxy, or it makes none
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_AUTHORITY_S)
        connection.connect(path)
        connection.send(messages.encode(AuthorityRequest()))
        if not (data := connection.recv(messages.MAX_BYTES)):
            raise ConnectionResetError("the egress proxy makes no certificate authority")
        return messages.decode_authority(data)


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
        self._secrets = ("", list[Placeholder]())

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` has something."""
        return self._poll.fileno()

    def serve(
        self,
        session: str,
        rules: NetworkRules,
        listeners: Sequence[Listener],
        sockets: Sequence[socket.socket],
        authority: str = "",
        placeholders: Sequence[Placeholder] = (),
    ) -> None:
        """Have these sockets served for a session. Returns before they are: connections wait in their backlogs.

        Args:
            session: id of the session, for records
            rules: what it may reach
            listeners: its sockets, as they were planned
            sockets: the sockets themselves, which belong to this object from now on
            authority: key and certificate from `fetch_authority`, for a session with secrets
            placeholders: the secrets that the session may use

        Raises:
            OSError: the proxy is not there
        """
        self._session, self._rules = session, rules
        self._secrets = authority, [*placeholders]
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
                if not self._sockets:
                    reasons.append(UNAVAILABLE)
        return reasons

    def close(self) -> None:
        """Close the connection and the sockets: whatever connects from now on is refused."""
        self._disconnect()
        for each in self._sockets:
            each.close()
        self._sockets = []

    def resume(self) -> None:
        """Hand the sockets to a proxy, if none has them."""
        if self._connection is None and self._sockets:
            self._reconnect()

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(_CONNECT_S)
            connection.connect(self._path)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, messages.MAX_BYTES)
            message = messages.encode(ServeMessage(self._session, self._rules, self._listeners, *self._secrets))
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
        """Hand the sockets to the next proxy; if there is none, close them, so that nothing waits in vain.

        A socket file at which nobody listens was left by a broker that has ended: the next one resumes.
        """
        self._disconnect()
        try:
            self._connect()
        except ConnectionRefusedError:
            pass
        except OSError:
            self.close()

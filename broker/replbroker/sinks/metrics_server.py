"""HTTP server for `GET /metrics` on loopback: the necessary part of HTTP/1.1, in the broker's event loop."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from replbroker.loop_parts import Register, Unregister

_MAX_CONNECTIONS = 8
_MAX_REQUEST = 8192  # bytes
_TIMEOUT_S = 5.0  # for a whole request and its response


class _HttpConnection:
    """A connection with its request and the unsent rest of its response."""

    __slots__ = ("deadline", "request", "response", "socket")

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.socket = sock
        self.deadline = deadline
        self.request = b""
        self.response = b""


class MetricsServer:
    """Server of metrics.

    Args:
        listener: Socket bound to loopback.
        text: Renders the metrics.
    """

    def __init__(self, listener: socket.socket, text: Callable[[], bytes]) -> None:
        self._listener = listener
        self._text = text
        self._epoll = select.epoll()
        self._connections: dict[int, _HttpConnection] = {}
        self.due: float | None = None
        listener.setblocking(False)
        listener.listen(16)
        self._epoll.register(listener, select.EPOLLIN)

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:  # noqa: ARG002
        """Register one descriptor for all connections."""
        register(self._epoll.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._connections:
                self._serve(self._connections[fd])

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._connections) >= _MAX_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        connection = self._connections[sock.fileno()] = _HttpConnection(sock, time.monotonic() + _TIMEOUT_S)
        self._epoll.register(sock, select.EPOLLIN)
        self.due = min(self.due or connection.deadline, connection.deadline)

    def _serve(self, connection: _HttpConnection) -> None:
        try:
            if not connection.response:
                self._read(connection)
            if connection.response:
                connection.response = connection.response[connection.socket.send(connection.response) :]
                if not connection.response:
                    self._close_connection(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._close_connection(connection)

    def _read(self, connection: _HttpConnection) -> None:
        data = connection.socket.recv(_MAX_REQUEST)
        connection.request += data
        if b"\r\n\r\n" in connection.request:
            connection.response = self._build_response(connection.request)
            self._epoll.modify(connection.socket, select.EPOLLOUT)
        elif not data or len(connection.request) >= _MAX_REQUEST:
            self._close_connection(connection)

    def _build_response(self, request: bytes) -> bytes:
        method, path, *_ = [*request.split(b"\r\n", 1)[0].split(b" "), b"", b""]
        if method not in (b"GET", b"HEAD"):
            return _response(b"405 Method Not Allowed", b"only GET /metrics is served\n")
        if path.partition(b"?")[0] != b"/metrics":
            return _response(b"404 Not Found", b"only GET /metrics is served\n")
        page = _response(b"200 OK", self._text())
        return page if method == b"GET" else page.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def _close_connection(self, connection: _HttpConnection) -> None:
        del self._connections[connection.socket.fileno()]
        self._epoll.unregister(connection.socket)
        connection.socket.close()

    def flush(self, now: float) -> None:
        """Close the connections that have timed out."""
        if self.due is None or now < self.due:
            return
        for connection in [each for each in self._connections.values() if each.deadline <= now]:
            self._close_connection(connection)
        self.due = min((each.deadline for each in self._connections.values()), default=None)

    def close(self) -> None:
        """Close everything."""
        for connection in list(self._connections.values()):
            self._close_connection(connection)
        self._epoll.close()
        self._listener.close()


def _response(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n"
    return head % (status, len(body)) + b"Connection: close\r\n\r\n" + body

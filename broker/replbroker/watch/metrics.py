"""A loopback port that answers `GET /metrics`: just enough HTTP/1.1, from the broker's own loop."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from replbroker.core.effects import Happened
from replbroker.watch.base import Drop, Register

_MOST = 8  # connections at once
_MAX_REQUEST = 8192  # bytes
_PATIENCE_S = 5.0  # for a whole request and its answer


class _Visit:
    """One connection."""

    __slots__ = ("answer", "asked", "socket", "until")

    def __init__(self, sock: socket.socket, until: float) -> None:
        self.socket = sock
        self.until = until
        self.asked = b""
        self.answer = b""


class Metrics:
    """A watcher that looks at nothing by itself. `door` is bound to loopback; `text` makes the page."""

    def __init__(self, door: socket.socket, text: Callable[[], bytes]) -> None:
        self._door = door
        self._text = text
        self._epoll = select.epoll()
        self._visits: dict[int, _Visit] = {}
        self.due: float | None = None
        door.setblocking(False)
        door.listen(16)
        self._epoll.register(door, select.EPOLLIN)

    def watch(self, register: Register, drop: Drop) -> None:  # noqa: ARG002
        """One descriptor for all connections."""
        register(self._epoll.fileno(), self._turn)

    def _turn(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd == self._door.fileno():
                self._accept()
            elif fd in self._visits:
                self._serve(self._visits[fd])

    def _accept(self) -> None:
        try:
            sock, _ = self._door.accept()
        except OSError:
            return
        if len(self._visits) >= _MOST:
            sock.close()
            return
        sock.setblocking(False)
        visit = self._visits[sock.fileno()] = _Visit(sock, time.monotonic() + _PATIENCE_S)
        self._epoll.register(sock, select.EPOLLIN)
        self.due = min(self.due or visit.until, visit.until)

    def _serve(self, visit: _Visit) -> None:
        try:
            if not visit.answer:
                self._read(visit)
            if visit.answer:
                visit.answer = visit.answer[visit.socket.send(visit.answer) :]
                if not visit.answer:
                    self._end(visit)
        except BlockingIOError:
            pass
        except OSError:
            self._end(visit)

    def _read(self, visit: _Visit) -> None:
        data = visit.socket.recv(_MAX_REQUEST)
        visit.asked += data
        if b"\r\n\r\n" in visit.asked:
            visit.answer = self._answer(visit.asked)
            self._epoll.modify(visit.socket, select.EPOLLOUT)
        elif not data or len(visit.asked) >= _MAX_REQUEST:
            self._end(visit)

    def _answer(self, asked: bytes) -> bytes:
        method, path, *_ = [*asked.split(b"\r\n", 1)[0].split(b" "), b"", b""]
        if method not in (b"GET", b"HEAD"):
            return _response(b"405 Method Not Allowed", b"GET /metrics is all there is\n")
        if path.partition(b"?")[0] != b"/metrics":
            return _response(b"404 Not Found", b"GET /metrics is all there is\n")
        page = _response(b"200 OK", self._text())
        return page if method == b"GET" else page.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    def _end(self, visit: _Visit) -> None:
        del self._visits[visit.socket.fileno()]
        self._epoll.unregister(visit.socket)
        visit.socket.close()

    def happened(self, event: Happened, now: float) -> None:
        """Figures are counted by the core itself."""

    def flush(self, now: float) -> None:
        """Let go of who dawdles."""
        if self.due is None or now < self.due:
            return
        for visit in [visit for visit in self._visits.values() if visit.until <= now]:
            self._end(visit)
        self.due = min((visit.until for visit in self._visits.values()), default=None)

    def close(self) -> None:
        """Close everything."""
        for visit in list(self._visits.values()):
            self._end(visit)
        self._epoll.close()
        self._door.close()


def _response(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: %d\r\n"
    return head % (status, len(body)) + b"Connection: close\r\n\r\n" + body

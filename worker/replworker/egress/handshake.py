"""Requests to the proxy by programs that know proxies: CONNECT and plain HTTP (RFC 9112), SOCKS5 (RFC 1928)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 16 * 1024
_SOCKS4, _SOCKS5 = 4, 5
_NO_AUTHENTICATION, _CONNECT, _BY_IPV4, _BY_NAME, _BY_IPV6 = 0, 1, 1, 3, 4
_SOCKS_REFUSED, _SOCKS_UNREACHABLE, _SOCKS_NO_COMMAND = 2, 4, 7
_TARGET = re.compile(rb"([A-Za-z]+) (\S+) HTTP/1\.[01]\r?\n")
_HOP_HEADER = re.compile(rb"(?im)^(?:proxy-[a-z-]+|connection|keep-alive):[^\r\n]*\r?\n")

Receive = Callable[[int], Awaitable[bytes]]
Send = Callable[[bytes], Awaitable[None]]


class ProxyRequest(NamedTuple):
    """A request for a connection.

    Attributes:
        host: The host as the program wrote it, not checked.
        port: The port.
        accepted: What to answer before the relay begins.
        forward: What to send to the host first.
        socks: Whether the program speaks SOCKS.
    """

    host: str
    port: int
    accepted: bytes = b""
    forward: bytes = b""
    socks: bool = False

    def refusal(self, reason: str, *, is_policy: bool) -> bytes:
        """Return the answer for a request that is not carried out."""
        if self.socks:
            return _socks_reply(_SOCKS_REFUSED if is_policy else _SOCKS_UNREACHABLE)
        return http_error("403 Forbidden" if is_policy else "502 Bad Gateway", reason)


class BadRequest(Exception):
    """A request that cannot be read; `answer` is what to send before the connection is closed."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer


def http_error(status: str, text: str) -> bytes:
    """Build a response with a text, after which the connection is closed."""
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


async def read_request(receive: Receive, send: Send) -> ProxyRequest:
    """Read a request of either kind from a new connection.

    Args:
        receive: Receives at most so many bytes; none at the end.
        send: Sends all bytes.

    Raises:
        BadRequest: it cannot be read
        OSError: the connection is broken
    """
    first = await receive(1)
    if not first:
        raise BadRequest(b"")
    if first[0] == _SOCKS5:
        return await _read_socks(receive, send)
    if first[0] == _SOCKS4:
        raise BadRequest(b"\0\x5b" + bytes(6))
    return parse_http(await _read_head(first, receive))


async def _read_head(head: bytes, receive: Receive) -> bytes:
    while b"\n\r\n" not in head and b"\n\n" not in head:
        if len(head) > MAX_HEAD_BYTES:
            raise BadRequest(http_error("431 Request Header Fields Too Large", "the request's head is too long"))
        more = await receive(MAX_HEAD_BYTES)
        if not more:
            raise BadRequest(b"")
        head += more
    return head


def parse_http(data: bytes) -> ProxyRequest:
    """Parse a request to an HTTP proxy; what follows its head is passed on.

    Raises:
        BadRequest: it is none
    """
    line = _TARGET.match(data)
    if line is None:
        raise BadRequest(http_error("400 Bad Request", "this is no request to a proxy"))
    method, target = line[1], line[2].decode("ascii", "replace")
    try:
        if method.upper() == b"CONNECT":
            host, _, port = target.rpartition(":")
            end = re.search(rb"\r?\n\r?\n", data)
            rest = data[end.end() :] if end else b""
            return ProxyRequest(host, _port(port), b"HTTP/1.1 200 Connection established\r\n\r\n", rest)
        url = urlsplit(target)
        if url.scheme != "http" or url.hostname is None or "@" in url.netloc:
            raise ValueError
        path = target[target.index("//") + 2 :].removeprefix(url.netloc)
        host, port = url.hostname, 80 if url.port is None else _port(str(url.port))
    except ValueError:
        text = "a request to this proxy is CONNECT HOST:PORT or METHOD http://HOST/PATH, without a user name"
        raise BadRequest(http_error("400 Bad Request", text)) from None
    head, blank, body = data[line.end() :].partition(b"\r\n\r\n")
    headers = _HOP_HEADER.sub(b"", head + b"\r\n")
    start = b"%s %s HTTP/1.1\r\n" % (method, (path if path.startswith("/") else f"/{path}").encode())
    return ProxyRequest(host, port, forward=start + headers + b"Connection: close\r\n\r\n" + (body if blank else b""))


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise ValueError
    return int(text)


async def _read_socks(receive: Receive, send: Send) -> ProxyRequest:
    methods = await _read_exactly(receive, (await _read_exactly(receive, 1))[0])
    if _NO_AUTHENTICATION not in methods:
        raise BadRequest(b"\x05\xff")
    await send(b"\x05\0")
    version, command, _, kind = await _read_exactly(receive, 4)
    if version != _SOCKS5 or command != _CONNECT:
        raise BadRequest(_socks_reply(_SOCKS_NO_COMMAND))
    if kind == _BY_NAME:
        host = (await _read_exactly(receive, (await _read_exactly(receive, 1))[0])).decode("ascii", "replace")
    elif kind == _BY_IPV4:
        host = ".".join(map(str, await _read_exactly(receive, 4)))
    else:
        host = f"[{(await _read_exactly(receive, 16)).hex(':', 2)}]" if kind == _BY_IPV6 else "?"
    port = int.from_bytes(await _read_exactly(receive, 2), "big")
    return ProxyRequest(host, port, _socks_reply(0), socks=True)


async def _read_exactly(receive: Receive, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await receive(count - len(data))
        if not more:
            raise BadRequest(b"")
        data += more
    return data


def _socks_reply(code: int) -> bytes:
    return bytes((_SOCKS5, code, 0, _BY_IPV4)) + bytes(6)

"""Connections to hosts: to exactly those addresses that were checked, so DNS rebinding has no effect."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from functools import lru_cache

from replwire.network import NetworkRules, check_address, is_address, parse_host_address

_RESOLVE_S = 10.0
_CONNECT_S = 15.0
_MAX_ADDRESSES = 8  # that a connection is tried with
_HEAD_BYTES = 16 * 1024


@lru_cache(64)
def _parse_addresses(entries: tuple[str, ...]) -> list[tuple[str, str, int | None]]:
    return [parse_host_address(entry) for entry in entries]


class Unreachable(Exception):
    """No connection, with the reason. `is_policy`: a setting forbids it; else the host or the network is at fault."""

    def __init__(self, reason: str, *, is_policy: bool = False) -> None:
        super().__init__(reason)
        self.is_policy = is_policy


class Dialer:
    """Opens connections for one sandbox."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lookups = asyncio.Semaphore(4)  # slow names of one sandbox do not hold up the others

    async def connect(self, rules: NetworkRules, name: str, port: int) -> socket.socket:
        """Connect to a host that the rules allow.

        Raises:
            Unreachable: there is no connection
        """
        where = f"{name}:{port}"
        try:
            async with asyncio.timeout(_CONNECT_S):
                if rules.upstream_proxy:
                    return await self._connect_upstream(rules.upstream_proxy, where)
                return await self._connect_checked(rules, name, port)
        except TimeoutError:
            raise Unreachable(f"{where} could not be reached within {_CONNECT_S:g} s") from None
        except OSError as error:
            raise Unreachable(f"{where} could not be reached: {error.strerror or error}") from None

    async def _connect_checked(self, rules: NetworkRules, name: str, port: int) -> socket.socket:
        targets = self._fixed_targets(rules, name, port) or await self._resolve(name, port)
        if not is_address(name):
            for address, _ in targets:
                verdict = check_address(rules, name, ipaddress.ip_address(address.partition("%")[0]))
                if not verdict.allowed:
                    raise Unreachable(verdict.reason, is_policy=True)
        failure = OSError(0, "it has no address")
        for address, at in targets[:_MAX_ADDRESSES]:
            try:
                return await self._open(address, at)
            except OSError as error:
                failure = error
        raise failure

    @staticmethod
    def _fixed_targets(rules: NetworkRules, name: str, port: int) -> list[tuple[str, int]]:
        """Return where the setting `host-addresses` says that a name leads, exact names before wildcards."""
        found = _parse_addresses(tuple(rules.host_addresses))
        exact = [(address, at or port) for host, address, at in found if host == name]
        below = [(address, at or port) for host, address, at in found if host[:1] == "*" and name.endswith(host[1:])]
        return exact or below

    async def _resolve(self, name: str, port: int) -> list[tuple[str, int]]:
        if is_address(name):
            return [(name, port)]
        try:
            async with self._lookups, asyncio.timeout(_RESOLVE_S):
                found = await self._loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise Unreachable(f"{name}:{port} could not be reached: {error.strerror}") from None
        return list(dict.fromkeys((str(address[0]), port) for *_, address in found))

    async def _open(self, address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(connection, (address, port))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _connect_upstream(self, upstream: str, where: str) -> socket.socket:
        """Connect through the machine's own proxy, which looks the name up."""
        host, _, port = upstream.removeprefix("http://").rstrip("/").rpartition(":")
        found = await self._loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        connection = await self._open(str(found[0][4][0]), int(port))
        try:
            await self._loop.sock_sendall(connection, f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the host's
                byte = await self._loop.sock_recv(connection, 1)
                head += byte
                if not byte or len(head) > _HEAD_BYTES:
                    raise OSError(0, "sandbox.upstream-proxy gave no answer")
            status = head.split(b"\r\n", 1)[0].decode("latin-1")
            if status.split(" ")[1:2] != ["200"]:
                raise OSError(0, f"sandbox.upstream-proxy answered {status[:100]}")
        except BaseException:
            connection.close()
            raise
        return connection

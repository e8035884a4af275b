"""One sandbox as the proxy serves it: its sockets, its names, its connections and what it has used."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from replwire.network import VIRTUAL_NETWORK, NetworkRules, TrafficOutcome, check_host, is_address, normalize_host
from replworker.egress import dns
from replworker.egress.dialer import Dialer, Unreachable
from replworker.egress.handshake import BadRequest, ProxyRequest, read_request
from replworker.egress.listeners import DNS_PORT, PROXY_PORT, Listener
from replworker.egress.names import NameTable
from replworker.egress.relay import Relay, RelayAborted, close_with_reset

if TYPE_CHECKING:
    from replworker.egress.session_secrets import HostSecrets, SessionSecrets

_HANDSHAKE_S = 10.0
_ACCEPTS = 16  # per turn of the loop
_DATAGRAMS = 16
_PAUSE_S = 0.2
_OWN_NAMES = ("localhost", "sandbox")  # the second is the host name, which programs look up for no reason
_PKTINFO = 8  # IP_PKTINFO
_MAX_TEXT = 260  # of a name that a program asked for, in messages

Note = Callable[[str, int, TrafficOutcome, str, int, int], None]  # host, port, outcome, reason, bytes sent and received


class ServedSandbox:
    """Serves the sockets of one sandbox.

    Args:
        loop: The loop.
        buffer: The buffer of all relays.
        rules: What the sandbox may reach.
        listeners: Its sockets, as they were planned.
        sockets: The sockets themselves; closed by `close`.
        note: Records an outcome.
        secrets: The session's secrets, if it has any.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        rules: NetworkRules,
        listeners: list[Listener],
        sockets: list[socket.socket],
        note: Note,
        secrets: SessionSecrets | None = None,
    ) -> None:
        self.rules = rules
        self._loop = loop
        self._buffer = buffer
        self._note = note
        self._secrets = secrets
        self._sockets = sockets
        self._names = NameTable({each.name: each.address for each in listeners if each.name is not None})
        self._dialer = Dialer(loop)
        self._tasks: set[asyncio.Task[None]] = set()
        self._used = 0
        for planned, each in zip(listeners, sockets, strict=True):
            each.setblocking(False)
            loop.add_reader(each, self._on_datagram if planned.kind == "udp" else self._on_connection, each)

    def close(self) -> None:
        """End every connection and close the sockets."""
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        for task in self._tasks:
            task.cancel()

    # --- names ---

    def _on_datagram(self, server: socket.socket) -> None:
        for _ in range(_DATAGRAMS):
            try:
                data, ancillary, _, client = server.recvmsg(dns.MAX_QUERY_BYTES, 64)
            except OSError:
                return
            answer = self._answer(data)
            if answer is None:
                continue
            try:
                server.sendmsg([answer], _from_same_address(ancillary), 0, client)
            except OSError:
                pass  # the program has gone, or does not read: it asks again

    def _answer(self, message: bytes) -> bytes | None:
        query = dns.parse_query(message)
        if query is None:
            return None
        name = normalize_host(query.name)
        if name in _OWN_NAMES:
            return dns.build_answer(query, dns.NO_ERROR, "127.0.0.1" if query.type == dns.A else None)
        if name is None or is_address(name) or query.type == 12:  # PTR: asked for by programs, not by people
            return dns.build_answer(query, dns.NO_SUCH_NAME)
        verdict = check_host(self.rules, name, None)
        if not verdict.allowed:
            if query.type == dns.A:  # one of the two or three queries that a program sends
                self._note(name, 0, "refused", verdict.reason, 0, 0)
            return dns.build_answer(query, dns.NO_SUCH_NAME)
        return dns.build_answer(query, dns.NO_ERROR, self._names.address_of(name) if query.type == dns.A else None)

    async def _serve_dns(self, connection: socket.socket) -> None:
        async with asyncio.timeout(_HANDSHAKE_S):
            while head := await self._loop.sock_recv(connection, 2):
                length = int.from_bytes(head.ljust(2, b"\0"), "big")
                message = b""
                while len(message) < length <= dns.MAX_QUERY_BYTES:
                    more = await self._loop.sock_recv(connection, length - len(message))
                    if not more:
                        return
                    message += more
                if (answer := self._answer(message)) is None:
                    return
                await self._loop.sock_sendall(connection, struct.pack("!H", len(answer)) + answer)

    # --- connections ---

    def _on_connection(self, server: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                connection, _ = server.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is left: the backlog waits, and this process does not spin
                self._loop.remove_reader(server)
                self._loop.call_later(_PAUSE_S, self._resume, server)
                return
            if len(self._tasks) >= self.rules.max_connections:
                reason = (
                    f"a connection was refused: {self.rules.max_connections} are open (sandbox.network-connections)"
                )
                self._note("", 0, "refused", reason, 0, 0)
                close_with_reset(connection)
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _resume(self, server: socket.socket) -> None:
        if server.fileno() >= 0:
            self._loop.add_reader(server, self._on_connection, server)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            address, port = connection.getsockname()[:2]
            if port == DNS_PORT:
                await self._serve_dns(connection)
            elif address.startswith("127."):
                await self._serve_proxy(connection, port)
            else:
                await self._serve_address(connection, address, port)
        except (OSError, TimeoutError, RelayAborted):
            close_with_reset(connection)
        finally:
            connection.close()

    async def _serve_address(self, connection: socket.socket, address: str, port: int) -> None:
        """Serve a connection to a host's virtual address, or to an address itself."""
        name = self._names.name_of(address)
        if name is None and IPv4Address(address) in VIRTUAL_NETWORK:
            close_with_reset(connection)  # a name of before, which its program has to look up again
            return
        try:
            host = await self._reach(name or address, port)
        except Unreachable:
            close_with_reset(connection)
            return
        await self._relay(connection, host, name or address, port)

    async def _serve_proxy(self, connection: socket.socket, port: int) -> None:
        if port != PROXY_PORT:
            close_with_reset(connection)  # nobody listens on this port of the session's own address
            return
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                request = await read_request(
                    lambda most: self._loop.sock_recv(connection, most),
                    lambda data: self._loop.sock_sendall(connection, data),
                )
        except BadRequest as bad:
            await self._answer_and_close(connection, bad.answer)
            return
        try:
            host = await self._reach_asked(request)
        except Unreachable as failure:
            text = f"network: {failure}"
            await self._answer_and_close(connection, request.refusal(text, is_policy=failure.is_policy))
            return
        try:
            await self._loop.sock_sendall(connection, request.accepted)
            await self._loop.sock_sendall(host, request.forward)
        except BaseException:
            host.close()
            raise
        await self._relay(connection, host, normalize_host(request.host) or "", request.port, len(request.forward))

    async def _answer_and_close(self, connection: socket.socket, answer: bytes) -> None:
        """Answer, and read what the program still sends, since unread bytes would take the answer away from it."""
        async with asyncio.timeout(_HANDSHAKE_S):
            await self._loop.sock_sendall(connection, answer)
            connection.shutdown(socket.SHUT_WR)
            for _ in range(_ACCEPTS):
                if not await self._loop.sock_recv(connection, len(self._buffer)):
                    return

    async def _reach_asked(self, request: ProxyRequest) -> socket.socket:
        name = normalize_host(request.host)
        if name is not None:
            return await self._reach(name, request.port)
        shown = request.host[:_MAX_TEXT].encode("ascii", "backslashreplace").decode()
        shown = "".join(each if each.isprintable() else "?" for each in shown)
        reason = f"{shown}:{request.port} was refused: it is neither a host name nor an IPv4 address"
        self._note(shown, request.port, "refused", reason, 0, 0)
        raise Unreachable(reason, is_policy=True)

    async def _reach(self, name: str, port: int) -> socket.socket:
        """Connect to a host if the rules allow it, and record it if not.

        Raises:
            Unreachable: there is no connection
        """
        verdict = check_host(self.rules, name, port)
        secrets = None if self._secrets is None else self._secrets.for_host(name, port)
        try:
            if not verdict.allowed:
                raise Unreachable(verdict.reason, is_policy=True)
            if secrets is not None and secrets.problem is not None:
                raise Unreachable(f"{name}:{port} was refused: {secrets.problem}", is_policy=True)
            if self._used >= self.rules.max_bytes:
                raise Unreachable(self._exhausted(name, port), is_policy=True)
            return await self._dialer.connect(self.rules, name, port)
        except Unreachable as failure:
            self._note(name, port, "refused" if failure.is_policy else "failed", str(failure), 0, 0)
            raise

    def _exhausted(self, name: str, port: int) -> str:
        return f"{name}:{port} was refused: all {self.rules.max_bytes} bytes are used (sandbox.network-bytes)"

    def _spend(self, count: int) -> bool:
        self._used += count
        return self._used <= self.rules.max_bytes

    async def _relay(
        self, connection: socket.socket, host: socket.socket, name: str, port: int, already_sent: int = 0
    ) -> None:
        secrets = None if self._secrets is None or already_sent else self._secrets.for_host(name, port)
        if self._secrets is not None and secrets is not None:
            await self._relay_with_secrets(self._secrets, secrets, connection, host, name, port)
            return
        relay = Relay(self._loop, self._buffer, connection, host, self._spend)
        try:
            await relay.run()
        except RelayAborted:
            if self._used > self.rules.max_bytes:
                self._note(name, port, "refused", self._exhausted(name, port), 0, 0)
            close_with_reset(host)
            raise
        finally:
            host.close()
            self._note(name, port, "reached", "", relay.sent + already_sent, relay.received)

    async def _relay_with_secrets(
        self,
        secrets: SessionSecrets,
        found: HostSecrets,
        connection: socket.socket,
        host: socket.socket,
        name: str,
        port: int,
    ) -> None:
        from replworker.egress.secret_relay import SecretRelay  # with TLS, which others do without

        relay = SecretRelay(secrets, found, name, self._spend)
        try:
            await relay.run(connection, host)
        except Unreachable as failure:
            self._note(name, port, "failed", str(failure), 0, 0)
        else:
            self._note(name, port, "reached", "", relay.sent, relay.received)
        finally:
            host.close()


def _from_same_address(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """Return control data that makes an answer come from the address that the query went to (ip(7), IP_PKTINFO)."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _PKTINFO) and len(data) == 12:
            return [(level, kind, bytes(4) + data[8:12] + bytes(4))]
    return []

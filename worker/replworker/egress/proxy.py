"""The egress proxy: one process per broker, which serves sessions' sockets inside their network namespaces.

Workers hand over the sockets of their sandbox with its rules; the proxy forgets the sandbox when their connection
ends. It ends itself with the broker, whose end of `control` is closed then.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import signal
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from replwire.network import TrafficOutcome
from replwire.secret_entries import SecretEntry
from replworker.egress import messages
from replworker.egress.ledger import Ledger
from replworker.egress.messages import (
    MAX_BYTES,
    MAX_FDS,
    AuthorityReply,
    AuthorityRequest,
    RefusalMessage,
    RulesMessage,
    ServeMessage,
)
from replworker.egress.relay import BUFFER_BYTES
from replworker.egress.served_sandbox import ServedSandbox
from replworker.sandbox.rights import NO_RIGHTS

if TYPE_CHECKING:
    from replworker.egress.session_secrets import SecretStore

_RECORD_DELAY_S = 0.05
_RECORDS_AT_ONCE = 100
_RESOLVERS = 32  # threads that look names up
_PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_NO_NEW_PRIVS = 4, 15, 38
_libc = ctypes.CDLL(None)


def run_proxy(listener: socket.socket, control: socket.socket, secrets: tuple[SecretEntry, ...]) -> None:
    """Serve until the broker ends; see `replworker.egress.process.serve`."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    workers = os.geteuid()
    "".encode("idna")
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    store = _read_secrets(secrets) if secrets else None
    _give_up_rights()
    try:
        asyncio.run(EgressProxy(listener, control, workers, store).run())
    finally:
        os._exit(0)


def _read_secrets(secrets: tuple[SecretEntry, ...]) -> SecretStore:
    from replworker.egress.session_secrets import SecretStore  # with TLS, which others do without

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return SecretStore(secrets, os.environ)


def _give_up_rights() -> None:
    """Leave no core dump, no way to trace this process and, under root, no rights: it reads what strangers send."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(*[NO_RIGHTS.gid] * 3)
        os.setresuid(*[NO_RIGHTS.uid] * 3)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(_PR_SET_NAME, b"replctl-egress", 0, 0, 0)


class EgressProxy:
    """All sandboxes of a broker."""

    def __init__(
        self, listener: socket.socket, control: socket.socket, workers: int, store: SecretStore | None
    ) -> None:
        self._store = store
        self._listener = listener
        self._control = control
        self._workers = workers
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._ledger = Ledger()
        self._is_sending = False
        self._sandboxes: dict[socket.socket, ServedSandbox] = {}

    async def run(self) -> None:
        """Serve until the broker's end of the control socket is closed."""
        self._loop = loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_RESOLVERS, "resolver"))
        over = asyncio.Event()
        self._control.setblocking(False)
        self._listener.setblocking(False)
        loop.add_reader(self._control, over.set)  # the broker sends nothing
        loop.add_reader(self._listener, self._on_worker)
        gc.freeze()
        await over.wait()

    def _on_worker(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != self._workers:
            connection.close()
            return
        connection.setblocking(False)
        self._loop.add_reader(connection, self._on_message, connection)

    def _on_message(self, connection: socket.socket) -> None:
        fds: list[int] = []
        try:
            data, fds, _, _ = socket.recv_fds(connection, MAX_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            message = messages.decode_from_worker(data) if data else None
            if isinstance(message, ServeMessage) and len(fds) == len(message.listeners):
                sockets, fds = [socket.socket(fileno=fd) for fd in fds], []
                self._serve_sandbox(connection, message, sockets)
            elif isinstance(message, AuthorityRequest) and self._store is not None:
                self._send_authority(connection, self._store)
            elif isinstance(message, RulesMessage) and connection in self._sandboxes:
                self._sandboxes[connection].rules = message.rules
            else:
                self._forget(connection)
        except BlockingIOError:
            return
        except (OSError, msgspec.MsgspecError):
            self._forget(connection)
        finally:
            for fd in fds:
                os.close(fd)

    @staticmethod
    def _send_authority(connection: socket.socket, store: SecretStore) -> None:
        authority = store.create_authority()
        connection.send(messages.encode(AuthorityReply(authority.pem(), authority.certificate_pem())))

    def _serve_sandbox(self, connection: socket.socket, message: ServeMessage, sockets: list[socket.socket]) -> None:
        def note(host: str, port: int, outcome: TrafficOutcome, reason: str, sent: int, received: int) -> None:
            self._ledger.add(message.session, host, port, outcome, reason, sent, received)
            if not self._is_sending:
                self._is_sending = True
                self._loop.call_later(_RECORD_DELAY_S, self._send_records)
            if reason:
                try:
                    connection.send(messages.encode(RefusalMessage(reason)))
                except OSError:
                    pass  # the worker reads again after some thousand refusals, or is gone

        if (earlier := self._sandboxes.pop(connection, None)) is not None:
            earlier.close()
        secrets = None
        if self._store is not None and message.authority:
            secrets = self._store.for_session(message.authority, message.placeholders)
        self._sandboxes[connection] = ServedSandbox(
            self._loop, self._buffer, message.rules, message.listeners, sockets, note, secrets
        )

    def _forget(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        if (sandbox := self._sandboxes.pop(connection, None)) is not None:
            sandbox.close()
        connection.close()

    def _send_records(self) -> None:
        """Send waiting records to the broker; those that do not fit now are tried again."""
        self._is_sending = False
        if not (records := self._ledger.take(_RECORDS_AT_ONCE)):
            return
        try:
            self._control.send(messages.encode(records))
        except BlockingIOError:
            for each in records:
                self._ledger.put_back(each)
        except OSError:
            return  # the broker has ended
        self._is_sending = True
        self._loop.call_later(_RECORD_DELAY_S, self._send_records)

"""The egress proxy's process: started for the first sandbox with a list of hosts, replaced when it dies, ended at last.

Its listening socket stays open in the broker: a worker that connects while one proxy is dead waits for the next. A
proxy that keeps dying is given up until another worker needs it, and its socket is closed: sessions are refused quickly
then, and told.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from replbroker.loop_parts import Register, Unregister
from replwire.network import TrafficRecord
from replworker.egress import messages

_BACKLOG = 1024
_MAX_STARTS, _WITHIN_S = 5, 10.0
_DEATH_S = 2.0
_MAX_READS = 20  # messages of the proxy in one turn of the loop
_log = logging.getLogger(__name__)

Task = Callable[[], None]


class EgressService:
    """The egress proxy of a broker.

    Args:
        directory: The broker's private directory, for the socket.
        start: Starts a proxy process with a listener and its end of a control socket, and returns it.
        submit: Has a task run on the spawner thread.
        post: Has a task run on the loop's thread.
    """

    def __init__(
        self,
        directory: Path,
        start: Callable[[socket.socket, socket.socket], Any],
        submit: Callable[[Task], None],
        post: Callable[[Task], None],
    ) -> None:
        self.path = f"{directory}/egress"
        self._start = start
        self._submit = submit
        self._post = post
        self._listener: socket.socket | None = None
        self._is_starting = False
        self._proxy: _RunningProxy | None = None
        self._starts: deque[float] = deque(maxlen=_MAX_STARTS)
        self._records: list[TrafficRecord] = []

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:
        """Keep the loop's functions for the descriptors of proxies."""
        self._register, self._unregister = register, unregister

    def ensure(self) -> None:
        """Start a proxy if none runs."""
        if self._proxy is not None or self._is_starting:
            return
        if self._listener is None:
            self._starts.clear()
            self._listener = self._listen()
        self._starts.append(time.monotonic())
        self._is_starting = True
        listener = self._listener
        self._submit(lambda: self._create(listener))

    def _create(self, listener: socket.socket) -> None:
        """Start a process, on the spawner thread."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = self._start(listener, theirs)
            ours.setblocking(False)
            proxy = _RunningProxy(process, os.pidfd_open(process.pid), ours)
        except Exception as error:  # noqa: BLE001 - the thread has to live to start workers
            ours.close()
            text = f"{type(error).__name__}: {error}"
            self._post(lambda: self._give_up(f"could not be started: {text}"))
        else:
            self._post(lambda: self._on_started(proxy))

    def _on_started(self, proxy: _RunningProxy) -> None:
        self._is_starting, self._proxy = False, proxy
        self._register(proxy.control.fileno(), self._on_records)
        self._register(proxy.pidfd, self._on_death)

    def _on_death(self) -> None:
        """Replace a proxy that has died, unless several have within a short time."""
        assert self._proxy is not None
        proxy, self._proxy = self._proxy, None
        for fd in (proxy.control.fileno(), proxy.pidfd):
            self._unregister(fd)
        proxy.control.close()
        os.close(proxy.pidfd)
        self._submit(lambda: proxy.process.join(_DEATH_S))
        if len(self._starts) == _MAX_STARTS and time.monotonic() - self._starts[0] < _WITHIN_S:
            self._give_up(f"died {_MAX_STARTS} times within {_WITHIN_S:g} s")
            return
        _log.warning("the egress proxy has died and is started again; its connections are lost")
        self.ensure()

    def _give_up(self, why: str) -> None:
        self._is_starting = False
        self._stop_listening()
        _log.warning("the egress proxy %s: sessions reach nothing until a worker with a list of hosts is started", why)

    def rebind(self) -> None:
        """Listen at a new socket file, after the directory was recreated: the next proxy does."""
        if self._listener is not None:
            self._stop_listening()
            self._listener = self._listen()
            self._kill()

    def take_records(self) -> list[TrafficRecord]:
        """Return what the proxy has reported since the last call."""
        records, self._records = self._records, []
        return records

    def _kill(self) -> None:
        if self._proxy is not None:
            try:
                signal.pidfd_send_signal(self._proxy.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self, *, for_successor: bool = False) -> None:
        """Kill the proxy, and wait for its death. Its socket file stays for a successor: workers wait for that one."""
        self._kill()
        if self._proxy is not None:
            death = select.poll()
            death.register(self._proxy.pidfd, select.POLLIN)
            death.poll(_DEATH_S * 1000)
            os.close(self._proxy.pidfd)
            self._proxy.control.close()
            self._proxy = None
        if for_successor and self._listener is not None:
            self._listener.close()
        else:
            self._stop_listening()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            Path(self.path).unlink(missing_ok=True)
            listener.bind(self.path)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def _stop_listening(self) -> None:
        if self._listener is not None:
            Path(self.path).unlink(missing_ok=True)  # first: at a file that is there, workers wait for another proxy
            self._listener.close()
            self._listener = None

    def _on_records(self) -> None:
        assert self._proxy is not None
        for _ in range(_MAX_READS):
            try:
                data = self._proxy.control.recv(messages.MAX_BYTES)
            except OSError:
                return
            if not data:
                return
            self._records += messages.decode_records(data)


class _RunningProxy(NamedTuple):
    """A proxy that runs: its process, a descriptor of it, and the broker's end of its control socket."""

    process: Any
    pidfd: int
    control: socket.socket

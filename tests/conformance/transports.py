"""One interface for every transport of the broker: ZeroMQ, JSON lines over TCP and Unix sockets, and memory.

A `AttackSite` is a broker seen through one transport. The three real ones lead into the same broker process, so its
sessions and limits are shared; the one in memory is `in_memory.Memory`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from in_memory import InMemoryBroker
from kit import TIMEOUT_S, BrokerProcess, LineWire, Wire, is_alive

KINDS = ("zmq", "tcp", "unix", "memory")
LINE_KINDS = KINDS[1:]
# Settings that tests share: each set of its own costs a broker, and its start.
USUAL = ("limits.rate-limit-per-min=0", "limits.interrupt-grace-ms=300")
SMALL = (
    "limits.max-message-bytes=1024",
    "limits.max-value-bytes=16",
    "limits.max-history=10",
    "limits.max-stdin-bytes=500",
    "limits.max-eval-time-ms=300",
    "limits.rate-limit-per-min=0",
)
ONE_SLOT = ("limits.max-concurrent-evals=1", "limits.max-queued-evals=2", *USUAL)
ONE_SESSION = ("limits.max-sessions=1",)
_LISTENERS = ("broker.tcp=127.0.0.1:0", "broker.unix=/DIRECTORY/run/lines.sock")


class BrokerSite(Protocol):
    """A broker as reached through one transport."""

    def wire(self) -> Any:
        """Open a connection: a `LineWire`, or a `Wire` for ZeroMQ."""

    def pid(self) -> int:
        """Return the pid of the process that the core runs in."""

    def log_text(self) -> str:
        """Return the broker's log."""

    def has_ended(self) -> bool:
        """Wait for the broker to end by itself, and return whether it did."""


class ProcessSite:
    """One transport of a broker process."""

    def __init__(self, kind: str, broker: BrokerProcess) -> None:
        self._kind = kind
        self.broker = broker

    def wire(self) -> Wire:
        return self.broker.wire() if self._kind == "zmq" else LineWire(self.broker.listening[self._kind])

    def pid(self) -> int:
        return self.broker.pid

    def log_text(self) -> str:
        return self.broker.log_text()

    def has_ended(self) -> bool:
        return self.broker.process.wait(TIMEOUT_S) == 0


class BrokerSites:
    """All brokers of a test run, started on first use: one process for each set of settings."""

    def __init__(self) -> None:
        self._brokers: dict[tuple[str, ...], BrokerProcess] = {}
        self._memories: dict[tuple[str, ...], InMemoryBroker] = {}

    def site(self, kind: str, *settings: str) -> BrokerSite:
        """Return the shared broker with these settings, through this transport."""
        if kind == "memory":
            if settings not in self._memories:
                self._memories[settings] = InMemoryBroker(*settings)
            return self._memories[settings]
        if settings not in self._brokers:
            self._brokers[settings] = self.start(*settings)
        return ProcessSite(kind, self._brokers[settings])

    @staticmethod
    def own(kind: str, *settings: str) -> tuple[BrokerSite, Callable[[], None]]:
        """Start an exclusive broker; return it and a function that stops it."""
        if kind == "memory":
            memory = InMemoryBroker(*settings)
            return memory, memory.close
        broker = BrokerSites.start(*settings)
        return ProcessSite(kind, broker), lambda: BrokerSites.remove(broker)

    @staticmethod
    def start(*settings: str) -> BrokerProcess:
        """Start a broker process, which `remove` stops."""
        directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))  # short: socket paths are bounded
        return BrokerProcess(directory, *_LISTENERS, *settings, cwd=directory)

    @staticmethod
    def remove(broker: BrokerProcess) -> None:
        """Stop a broker, and check that it has logged no defect and left no process."""
        family = broker.process_tree()
        assert broker.stop() == 0, broker.log_text()
        assert "internal error" not in broker.log_text()
        assert not [pid for pid in family if is_alive(pid)], broker.log_text()
        shutil.rmtree(broker.directory)

    def close(self) -> None:
        """Stop every broker, even if one fails to; each has to be running still."""
        with ExitStack() as ends:
            for memory in self._memories.values():
                ends.callback(_end_memory, memory)
            for broker in self._brokers.values():
                ends.callback(_end_broker, broker)


def _end_memory(memory: InMemoryBroker) -> None:
    exited = memory.has_exited
    memory.close()
    assert not exited, memory.log_text()


def _end_broker(broker: BrokerProcess) -> None:
    assert broker.process.poll() is None, broker.log_text()
    BrokerSites.remove(broker)

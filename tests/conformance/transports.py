"""One face over every road into the broker: ZeroMQ, JSON lines over TCP and Unix sockets, and memory.

A `Site` is a broker seen through one transport. The three real ones lead into the same broker process, so its
sessions and limits are shared; the one in memory is `in_memory.Memory`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from in_memory import Memory
from kit import PATIENCE_S, Broker, LineWire, Wire, alive

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
_LISTENERS = ("broker.tcp=127.0.0.1:0", "broker.unix=/FOLDER/run/lines.sock")


class Site(Protocol):
    """A broker, seen through one transport."""

    def wire(self) -> Any:
        """One more connection; a `LineWire`, or for ZeroMQ a `Wire`."""

    def pid(self) -> int:
        """The process that the broker's core runs in."""

    def log_text(self) -> str:
        """What the broker has logged."""

    def has_ended(self) -> bool:
        """Whether it came to its end by itself; waits for that."""


class Real:
    """One transport of a broker process."""

    def __init__(self, kind: str, broker: Broker) -> None:
        self._kind = kind
        self.broker = broker

    def wire(self) -> Wire:
        return self.broker.wire() if self._kind == "zmq" else LineWire(self.broker.listening[self._kind])

    def pid(self) -> int:
        return self.broker.pid

    def log_text(self) -> str:
        return self.broker.log_text()

    def has_ended(self) -> bool:
        return self.broker.process.wait(PATIENCE_S) == 0


class Sites:
    """All brokers of a test run, started when first asked for: one process for each set of settings."""

    def __init__(self) -> None:
        self._brokers: dict[tuple[str, ...], Broker] = {}
        self._memories: dict[tuple[str, ...], Memory] = {}

    def site(self, kind: str, *settings: str) -> Site:
        """The long-lived broker with these settings, through this transport."""
        if kind == "memory":
            if settings not in self._memories:
                self._memories[settings] = Memory(*settings)
            return self._memories[settings]
        if settings not in self._brokers:
            self._brokers[settings] = self.start(*settings)
        return Real(kind, self._brokers[settings])

    @staticmethod
    def own(kind: str, *settings: str) -> tuple[Site, Callable[[], None]]:
        """A broker that nobody else has, and how to end it."""
        if kind == "memory":
            memory = Memory(*settings)
            return memory, memory.close
        broker = Sites.start(*settings)
        return Real(kind, broker), lambda: Sites.bury(broker)

    @staticmethod
    def start(*settings: str) -> Broker:
        """A broker process; to be given to `bury`."""
        folder = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))  # short: socket paths are bounded
        return Broker(folder, *_LISTENERS, *settings)

    @staticmethod
    def bury(broker: Broker) -> None:
        """End it; it has logged no defect and leaves no process."""
        family = broker.family()
        assert broker.stop() == 0, broker.log_text()
        assert "internal error" not in broker.log_text()
        assert not [pid for pid in family if alive(pid)], broker.log_text()
        shutil.rmtree(broker.folder)

    def close(self) -> None:
        """End all, whatever one of them says at its end; every one must still be there."""
        with ExitStack() as ends:
            for memory in self._memories.values():
                ends.callback(_end_memory, memory)
            for broker in self._brokers.values():
                ends.callback(_end_broker, broker)


def _end_memory(memory: Memory) -> None:
    ended = memory.ended
    memory.close()
    assert not ended, memory.log_text()


def _end_broker(broker: Broker) -> None:
    assert broker.process.poll() is None, broker.log_text()
    Sites.bury(broker)

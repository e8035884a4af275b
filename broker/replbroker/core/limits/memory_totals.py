"""Memory in sum: bounds on what may begin, and the choice of what ends when there is too little.

What the machine has left is told by the shell, what sessions use by their workers. Sums are made once for a burst of
such reports; to ask whether something may begin looks at the last sums and walks nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from replbroker.core.sessions.session import Session
from replwire.faults import RequestError
from replwire.limits import MIB, Limits

_FREE_SHARE, _MIN_FREE, _MAX_FREE = 32, 64 * MIB, 512 * MIB


class AvailableMemory(NamedTuple):
    """Bytes that this machine, or the broker's control group where that is less, has in all and has left."""

    total: int
    available: int


class WorkerMemory(NamedTuple):
    """A worker, by its number, whose processes those are, and the bytes that they use."""

    worker: int
    session: Session
    used: int


class MemoryExcess(NamedTuple):
    """A session that has to end, and the cause."""

    worker: int
    session: Session
    cause: str


class MemoryTotals:
    """The figures that count now. Before the first look at the machine nothing is bounded that is derived from it."""

    def __init__(self, limits: Limits, own: str) -> None:
        self.limits = limits
        self._broker_user = own
        self.machine: AvailableMemory | None = None
        self.used = 0
        self._used_by: Counter[str] = Counter()
        self._largest: dict[str, WorkerMemory] = {}

    # --- bounds ---

    @property
    def max_bytes(self) -> int | None:
        """Bytes that all sessions may use together."""
        if self.limits.max_memory_bytes or self.machine is None:
            return self.limits.max_memory_bytes or None
        return self.machine.total * 9 // 10

    def max_bytes_of(self, identity: str) -> int | None:
        """Bytes that this identity's sessions may use together, where that is less than all may."""
        if self.limits.max_identity_memory_bytes:
            return self.limits.max_identity_memory_bytes
        most = self.max_bytes
        return None if most is None or identity == self._broker_user else most // 2

    @property
    def min_free(self) -> int:
        """Bytes that have to be available for something to begin."""
        if self.limits.min_free_memory_bytes or self.machine is None:
            return self.limits.min_free_memory_bytes
        return min(_MAX_FREE, max(_MIN_FREE, self.machine.total // _FREE_SHARE))

    @property
    def is_short(self) -> bool:
        """Return whether the machine has less left than that."""
        return self.machine is not None and self.machine.available < self.min_free

    def available_to(self, identity: str) -> int | None:
        """Bytes that this identity's sessions can still take, all bounds together; None when nothing is known."""
        rest = []
        if self.machine is not None:
            rest.append(self.machine.available - self.min_free)
        for most, used in ((self.max_bytes, self.used), (self.max_bytes_of(identity), self._used_by[identity])):
            if most is not None:
                rest.append(most - used)
        return max(0, min(rest)) if rest else None

    # --- figures ---

    def update(self, uses: Iterable[WorkerMemory]) -> None:
        """Take in the figures of all sessions."""
        self.used = 0
        self._used_by.clear()
        self._largest.clear()
        for use in uses:
            identity = use.session.owner
            self.used += use.used
            self._used_by[identity] += use.used
            if identity not in self._largest or use.used > self._largest[identity].used:
                self._largest[identity] = use

    def check(self, identity: str) -> None:
        """Raise Refusal `memory-limit-reached` when this identity may not begin anything."""
        if self.is_short:
            assert self.machine is not None
            err = f"The machine has {_mib(self.machine.available)} of memory left"
            raise _refusal("min-free-memory-bytes", self.min_free, err)
        if (most := self.max_bytes_of(identity)) is not None and self._used_by[identity] >= most:
            err = f"The sessions of {identity} use {_mib(self._used_by[identity])} of memory"
            raise _refusal("max-identity-memory-bytes", most, err)
        if (most := self.max_bytes) is not None and self.used >= most:
            raise _refusal("max-memory-bytes", most, f"All sessions use {_mib(self.used)} of memory")

    def find_excess(self, *, fresh: bool) -> MemoryExcess | None:
        """Choose what ends: of an identity that uses too much, then where all do or the machine runs out, of who uses
        most. `fresh`: the machine was looked at since the last end."""
        for identity, use in self._largest.items():
            most, used = self.max_bytes_of(identity), self._used_by[identity]
            if most is not None and used > most:
                return _excess(use, f"the sessions of {identity} used {_mib(used)}, limit {_mib(most)}")
        most_used = max(self._used_by, key=self._used_by.__getitem__, default=None)  # however it is divided
        if most_used is None or not self._used_by[most_used]:
            return None
        largest = self._largest[most_used]
        if self.max_bytes is not None and self.used > self.max_bytes:
            return _excess(largest, f"all sessions used {_mib(self.used)}, limit {_mib(self.max_bytes)}")
        if fresh and self.machine is not None and self.machine.available < self.min_free // 2:
            return _excess(largest, f"the machine had {_mib(self.machine.available)} of memory left")
        return None

    def as_stats(self) -> dict[str, int | None]:
        """For `stats`."""
        machine = self.machine
        return {
            "used": self.used,
            "limit": self.max_bytes,
            "least-free": self.min_free,
            "available": None if machine is None else machine.available,
            "total": None if machine is None else machine.total,
        }


def _excess(use: WorkerMemory, why: str) -> MemoryExcess:
    cause = f"killed: {why}, and this is the largest session of who used most: {_mib(use.used)}"
    return MemoryExcess(use.worker, use.session, cause)


def _refusal(limit: str, value: int, err: str) -> RequestError:
    hint = "close or reset a session, or wait until others end"
    return RequestError("memory-limit-reached", f"{err} ({limit} = {value})", limit=limit, limit_value=value, hint=hint)


def _mib(value: int) -> str:
    return f"{value // MIB} MiB"

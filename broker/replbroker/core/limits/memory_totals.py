"""Memory in sum: limits on what may begin, and the choice of what ends when there is too little.

The shell measures what the machine has left; workers report what their sessions use. Sums and limits are computed once
for a burst of such reports. The check of whether something may begin only compares the last sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from replwire.faults import RequestError
from replwire.limits import MIB, Limits

_FREE_SHARE, _MIN_FREE, _MAX_FREE = 32, 64 * MIB, 512 * MIB


class AvailableMemory(NamedTuple):
    """Memory of this machine, or of the broker's control group where that is less, in bytes."""

    total: int
    available: int


class WorkerMemory(NamedTuple):
    """The bytes that the processes of one worker's session use."""

    worker: int
    owner: str
    used: int


class MemoryExcess(NamedTuple):
    """A worker whose session has to end, and the cause."""

    worker: int
    cause: str


class MemoryTotals:
    """Current sums and limits. Limits derived from the machine apply from its first measurement on.

    Attributes:
        machine: The last measurement.
        used: Bytes that all sessions use.
        max_bytes: Bytes that all sessions may use together; None for no limit.
        min_free: Bytes that have to be available for something to begin.
        is_short: Fewer bytes are available.
    """

    def __init__(self, limits: Limits, broker_user: str) -> None:
        self._broker_user = broker_user
        self.machine: AvailableMemory | None = None
        self.used = 0
        self._used_by: Counter[str] = Counter()
        self._largest: dict[str, WorkerMemory] = {}
        self.set_limits(limits)

    # --- limits ---

    def set_limits(self, limits: Limits) -> None:
        """Apply other limits."""
        self.limits = limits
        self._derive()

    def set_machine(self, machine: AvailableMemory) -> None:
        """Apply a measurement of the machine."""
        self.machine = machine
        self._derive()

    def _derive(self) -> None:
        limits, machine = self.limits, self.machine
        self.max_bytes: int | None = limits.max_memory_bytes or None
        self.min_free: int = limits.min_free_memory_bytes
        if machine is not None:
            self.max_bytes = self.max_bytes or machine.total * 9 // 10
            self.min_free = self.min_free or min(_MAX_FREE, max(_MIN_FREE, machine.total // _FREE_SHARE))
        half = None if self.max_bytes is None else self.max_bytes // 2
        self._max_of_others: int | None = limits.max_identity_memory_bytes or half
        self._max_of_broker_user: int | None = limits.max_identity_memory_bytes or None
        self.is_short = machine is not None and machine.available < self.min_free

    def max_bytes_of(self, identity: str) -> int | None:
        """Return the bytes that this identity's sessions may use together; None for no limit."""
        return self._max_of_broker_user if identity == self._broker_user else self._max_of_others

    def available_to(self, identity: str) -> int | None:
        """Return the bytes that this identity's sessions can still take; None when nothing is known."""
        rest = []
        if self.machine is not None:
            rest.append(self.machine.available - self.min_free)
        for most, used in ((self.max_bytes, self.used), (self.max_bytes_of(identity), self._used_by[identity])):
            if most is not None:
                rest.append(most - used)
        return max(0, min(rest)) if rest else None

    # --- sums ---

    def update(self, workers: Iterable[WorkerMemory]) -> None:
        """Sum up the memory of all workers that have a session."""
        self.used = 0
        self._used_by.clear()
        self._largest.clear()
        for each in workers:
            self.used += each.used
            self._used_by[each.owner] += each.used
            if each.owner not in self._largest or each.used > self._largest[each.owner].used:
                self._largest[each.owner] = each

    def check(self, identity: str) -> None:
        """Raise RequestError `memory-limit-reached` when this identity may not begin anything."""
        if self.is_short:
            assert self.machine is not None
            err = f"The machine has {_mib(self.machine.available)} of memory left"
            raise _limit_error("min-free-memory-bytes", self.min_free, err)
        most = self._max_of_broker_user if identity == self._broker_user else self._max_of_others
        if most is not None and (used := self._used_by.get(identity, 0)) >= most:
            err = f"The sessions of {identity} use {_mib(used)} of memory"
            raise _limit_error("max-identity-memory-bytes", most, err)
        if self.max_bytes is not None and self.used >= self.max_bytes:
            raise _limit_error("max-memory-bytes", self.max_bytes, f"All sessions use {_mib(self.used)} of memory")

    def find_excess(self, *, fresh: bool) -> MemoryExcess | None:
        """Choose what ends: the largest session of an identity over its limit, else of the identity that uses most.

        Args:
            fresh: The machine was measured since the last end of a session.
        """
        for identity, largest in self._largest.items():
            most, used = self.max_bytes_of(identity), self._used_by[identity]
            if most is not None and used > most:
                return _excess(largest, f"the sessions of {identity} used {_mib(used)}, limit {_mib(most)}")
        top = max(self._used_by, key=self._used_by.__getitem__, default=None)  # however it is divided
        if top is None or not self._used_by[top]:
            return None
        largest = self._largest[top]
        if self.max_bytes is not None and self.used > self.max_bytes:
            return _excess(largest, f"all sessions used {_mib(self.used)}, limit {_mib(self.max_bytes)}")
        if fresh and self.machine is not None and self.machine.available < self.min_free // 2:
            return _excess(largest, f"the machine had {_mib(self.machine.available)} of memory left")
        return None

    def as_stats(self) -> dict[str, int | None]:
        """Return the part of `stats` about memory."""
        machine = self.machine
        return {
            "used": self.used,
            "limit": self.max_bytes,
            "least-free": self.min_free,
            "available": None if machine is None else machine.available,
            "total": None if machine is None else machine.total,
        }


def _excess(largest: WorkerMemory, why: str) -> MemoryExcess:
    cause = f"killed: {why}, and this is the largest session of the identity that used most: {_mib(largest.used)}"
    return MemoryExcess(largest.worker, cause)


def _limit_error(limit: str, value: int, err: str) -> RequestError:
    hint = "close or reset a session, or wait until others end"
    fields = {"limit": limit, "limit_value": value, "hint": hint}
    return RequestError("memory-limit-reached", f"{err} ({limit} = {value})", **fields)


def _mib(value: int) -> str:
    return f"{value // MIB} MiB"

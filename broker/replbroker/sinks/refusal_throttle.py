"""Throttle for floods in the audit.

Of the refusals of one kind to one identity, the first few of a second are written one by one, and the rest as one
record with their number.
"""

from __future__ import annotations

from typing import Any

from replwire.faults import FAULTS, Origin

_WINDOW_S = 1.0
_MAX_PER_WINDOW = 10
_MAX_KINDS = 1000  # counted at once; refusals of further kinds are all written
_REFUSALS = frozenset(code for code, fault in FAULTS.items() if fault.origin is Origin.CALLER)

AuditRecord = dict[str, Any]
_RefusalKey = tuple[object, object]


class RefusalThrottle:
    """Refusals of the last second, by identity and outcome."""

    def __init__(self) -> None:
        self._window_start: dict[_RefusalKey, float] = {}  # the oldest first
        self._written_counts: dict[_RefusalKey, int] = {}
        self._suppressed: dict[_RefusalKey, AuditRecord] = {}

    @property
    def due(self) -> float | None:
        """Monotonic time at which `take_summaries` should be called."""
        return next(iter(self._window_start.values())) + _WINDOW_S if self._window_start else None

    def admit(self, record: AuditRecord, when: float) -> bool:
        """Return whether a record is to be written by itself; if not, it is counted."""
        if record["outcome"] not in _REFUSALS:
            return True
        key = record["identity"], record["outcome"]
        if key not in self._window_start:
            if len(self._window_start) >= _MAX_KINDS:
                return True
            self._window_start[key], self._written_counts[key] = when, 0
        if self._written_counts[key] < _MAX_PER_WINDOW:
            self._written_counts[key] += 1
            return True
        before = self._suppressed.get(key, {"repeated": 0})
        self._suppressed[key] = record | {"repeated": before["repeated"] + record.get("repeated", 1)}
        return False

    def take_summaries(self, now: float) -> list[AuditRecord]:
        """Return a record for each window that is over: the last suppressed one, with their number."""
        summaries = []
        while self._window_start and next(iter(self._window_start.values())) + _WINDOW_S <= now:
            key = next(iter(self._window_start))
            del self._window_start[key], self._written_counts[key]
            if key in self._suppressed:
                summaries.append(self._suppressed.pop(key))
        return summaries

"""Floods in the audit: of refusals of one kind to one identity the first few of a second are told one by one, the rest
as one record that says how many it stands for."""

from __future__ import annotations

from typing import Any

from replwire.faults import FAULTS, Origin

_WINDOW_S = 1.0
_MAX_PER_WINDOW = 10
_MAX_KINDS = 1000  # counted at once; of more than that each is told
_REFUSALS = frozenset(word for word, fault in FAULTS.items() if fault.origin is Origin.CALLER)

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
        """When `over` is wanted."""
        return next(iter(self._window_start.values())) + _WINDOW_S if self._window_start else None

    def admit(self, record: AuditRecord, when: float) -> bool:
        """Whether this record is told by itself; else it is counted."""
        if record["outcome"] not in _REFUSALS:
            return True
        kind = record["identity"], record["outcome"]
        if kind not in self._window_start:
            if len(self._window_start) >= _MAX_KINDS:
                return True
            self._window_start[kind], self._written_counts[kind] = when, 0
        if self._written_counts[kind] < _MAX_PER_WINDOW:
            self._written_counts[kind] += 1
            return True
        held = self._suppressed.get(kind, {"repeated": 0})
        self._suppressed[kind] = record | {"repeated": held["repeated"] + record.get("repeated", 1)}
        return False

    def take_summaries(self, now: float) -> list[AuditRecord]:
        """What was counted in windows that are over; the newest of them stands for the others."""
        found = []
        while self._window_start and next(iter(self._window_start.values())) + _WINDOW_S <= now:
            kind = next(iter(self._window_start))
            del self._window_start[kind], self._written_counts[kind]
            if kind in self._suppressed:
                found.append(self._suppressed.pop(kind))
        return found

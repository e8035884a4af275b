"""Floods in the audit: of refusals of one kind to one identity the first few of a second are told one by one, the rest
as one record that says how many it stands for."""

from __future__ import annotations

from typing import Any

from replwire.faults import FAULTS, Whose

_WINDOW_S = 1.0
_SHOWN = 10
_MAX_KINDS = 1000  # counted at once; of more than that each is told
_REFUSALS = frozenset(word for word, fault in FAULTS.items() if fault.whose is Whose.CALLER)

Record = dict[str, Any]
_Kind = tuple[object, object]


class Repeats:
    """Refusals of the last second, by identity and outcome."""

    def __init__(self) -> None:
        self._since: dict[_Kind, float] = {}  # the oldest first
        self._shown: dict[_Kind, int] = {}
        self._held: dict[_Kind, Record] = {}

    @property
    def due(self) -> float | None:
        """When `over` is wanted."""
        return next(iter(self._since.values())) + _WINDOW_S if self._since else None

    def passes(self, record: Record, when: float) -> bool:
        """Whether this record is told by itself; else it is counted."""
        if record["outcome"] not in _REFUSALS:
            return True
        kind = record["identity"], record["outcome"]
        if kind not in self._since:
            if len(self._since) >= _MAX_KINDS:
                return True
            self._since[kind], self._shown[kind] = when, 0
        if self._shown[kind] < _SHOWN:
            self._shown[kind] += 1
            return True
        held = self._held.get(kind, {"repeated": 0})
        self._held[kind] = record | {"repeated": held["repeated"] + record.get("repeated", 1)}
        return False

    def over(self, now: float) -> list[Record]:
        """What was counted in windows that are over; the newest of them stands for the others."""
        found = []
        while self._since and next(iter(self._since.values())) + _WINDOW_S <= now:
            kind = next(iter(self._since))
            del self._since[kind], self._shown[kind]
            if kind in self._held:
                found.append(self._held.pop(kind))
        return found

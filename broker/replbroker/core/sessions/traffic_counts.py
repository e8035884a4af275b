"""Counts of what one session has reached by a list of hosts."""

from __future__ import annotations

from dataclasses import dataclass

from replwire.network import TrafficRecord


@dataclass(slots=True)
class TrafficCounts:
    """Connections of one session by how they ended, and their bytes."""

    reached: int = 0
    refused: int = 0
    failed: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def add(self, record: TrafficRecord) -> None:
        """Add a record."""
        setattr(self, record.outcome, getattr(self, record.outcome) + record.count)
        self.sent_bytes += record.sent
        self.received_bytes += record.received

    def show(self) -> dict[str, int]:
        """Return the part of `info`."""
        return {name.replace("_", "-"): getattr(self, name) for name in self.__slots__}

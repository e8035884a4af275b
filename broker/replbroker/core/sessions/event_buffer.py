"""A buffer of the newest canonical events of one session."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from replwire.limits import Limits


class BufferedEvent(NamedTuple):
    """One encoded event."""

    seq: int
    type: str
    body: bytes


class EventBuffer:
    """The number of the last event, and as many of the newest events as the limits allow."""

    __slots__ = ("_bytes", "_events", "seq")

    def __init__(self) -> None:
        self.seq = 0
        self._events: deque[BufferedEvent] = deque()
        self._bytes = 0

    def append(self, event: BufferedEvent, limits: Limits) -> None:
        """Add an event, and drop the oldest ones beyond the limits."""
        self._events.append(event)
        self._bytes += len(event.body)
        while len(self._events) > limits.event_ring or self._bytes > limits.event_ring_bytes:
            self._bytes -= len(self._events.popleft().body)

    def after(self, seq: int) -> list[BufferedEvent]:
        """Return the events that followed a number, as far as they are still here."""
        return [event for event in self._events if event.seq > seq]

    def newest(self, count: int) -> list[BufferedEvent]:
        """Return the last so many events, the oldest first."""
        return list(self._events)[-count:]

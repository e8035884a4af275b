"""The newest canonical events of one session."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from replwire.limits import Limits


class BufferedEvent(NamedTuple):
    """One event."""

    seq: int
    type: str
    body: bytes


class EventBuffer:
    """The number of the last event, and as many of the newest as there is room for."""

    __slots__ = ("_bytes", "_events", "seq")

    def __init__(self) -> None:
        self.seq = 0
        self._events: deque[BufferedEvent] = deque()
        self._bytes = 0

    def append(self, event: BufferedEvent, limits: Limits) -> None:
        """One more."""
        self._events.append(event)
        self._bytes += len(event.body)
        while len(self._events) > limits.event_ring or self._bytes > limits.event_ring_bytes:
            self._bytes -= len(self._events.popleft().body)

    def after(self, seq: int) -> list[BufferedEvent]:
        """What is still here of what came after this number."""
        return [kept for kept in self._events if kept.seq > seq]

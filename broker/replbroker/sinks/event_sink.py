"""Interfaces of event sinks: parts that get every event, outside the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from replbroker.core.effects import PublishEvent
from replbroker.loop_parts import TimedPart


class EventSink(TimedPart, Protocol):
    """Receiver of every event that some part outside the core wants. Never waits and never raises."""

    def on_event(self, event: PublishEvent, now: float) -> None:
        """Take one event."""

    def close(self) -> None:
        """Flush and stop; has to return within a few seconds."""


class RecordingSink(EventSink, Protocol):
    """Sink that stores or forwards events, and counts what it loses."""

    def snapshot(self) -> dict[str, Any]:
        """Return counters for `introspect`."""


Snapshots = dict[str, Callable[[], Any]]

"""The core's clock: the moment of the current call, and monotonic moments as wall time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime


class CoreClock:
    """The time of one broker. The shell sets it at each call; the core never reads a clock of its own.

    Attributes:
        now: The moment of the current call, in monotonic seconds.
    """

    def __init__(self, monotonic_to_unix: Callable[[], float]) -> None:
        """Create a clock.

        Args:
            monotonic_to_unix: Returns the Unix time of monotonic zero, which moves when the wall clock is set.
        """
        self.now = 0.0
        self._monotonic_to_unix = monotonic_to_unix
        self._second, self._prefix = -1, ""

    def to_iso(self, when: float) -> str:
        """Return a monotonic moment as ISO 8601 in UTC, by the wall clock as it is set now."""
        at = self._monotonic_to_unix() + when
        second = int(at)
        if second != self._second:  # everything but the fraction is the same for all events of a second
            self._second, self._prefix = second, datetime.fromtimestamp(second, UTC).isoformat()[:-6]
        return f"{self._prefix}.{int((at - second) * 1000):03d}+00:00"

    def from_unix(self, when: float) -> float:
        """Return a moment in Unix seconds as a monotonic one, which may be before the machine's start."""
        return when - self._monotonic_to_unix()

    def to_unix(self, when: float) -> float:
        """Return a monotonic moment in Unix seconds."""
        return round(self._monotonic_to_unix() + when, 3)

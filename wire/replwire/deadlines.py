"""Timer queue: callbacks due at a point in time, and the time of the next one."""

from __future__ import annotations

import heapq
from collections.abc import Callable

_SMALL = 64  # cancelled entries below which the heap is not rebuilt
_AGAIN_S = 1.0  # when an action that there was no memory for is repeated
_SHORTEST_GAP_S = 0.25  # shorter gaps are normal on a busy machine


class Deadline:
    """A scheduled callback; cancel it through the `Deadlines` that created it."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[float], None]) -> None:
        self.when = when
        self.action: Callable[[float], None] | None = action


class Deadlines:
    """A heap of timers with lazy deletion.

    An eval sets a timer and nearly always cancels it, so both operations must be cheap.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._count = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def call_at(self, when: float, action: Callable[[float], None]) -> Deadline:
        """Schedule `action(now)` for the first `run_due` at or after `when` (monotonic seconds)."""
        deadline = Deadline(when, action)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, deadline))
        return deadline

    def cancel(self, deadline: Deadline | None) -> None:
        """Cancel a timer. None, expired and cancelled timers are accepted."""
        if deadline is None or deadline.action is None:
            return
        deadline.action = None
        self._dead += 1
        if self._dead > _SMALL and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def shift(self, seconds: float) -> None:
        """Postpone all timers by `seconds`, after a time in which none of them could run."""
        for _, _, deadline in self._heap:
            deadline.when += seconds
        self._heap = [(when + seconds, count, deadline) for when, count, deadline in self._heap]  # in the same order

    def next_due(self) -> float | None:
        """Return the time of the earliest timer, or None."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else None

    def run_due(self, now: float) -> None:
        """Run all expired timers, earliest first."""
        while (when := self.next_due()) is not None and when <= now:
            deadline = heapq.heappop(self._heap)[2]
            action, deadline.action = deadline.action, None
            if action is not None:
                try:
                    action(now)
                except MemoryError:  # what is due must not be forgotten, nor hold up what comes after it
                    deadline.when, deadline.action = now + _AGAIN_S, action
                    self._count += 1
                    heapq.heappush(self._heap, (deadline.when, self._count, deadline))
                    raise


class GapDetector:
    """Detects time in which this process did not run: stopped by a signal, frozen, or suspended.

    An event loop reports the monotonic time and its thread's CPU time before and after each sleep. A sleep longer than
    requested counts as a gap, and so does time between two sleeps without CPU use; a busy loop has no gaps. A gap
    inside a sleep that ended early is not detected, so sleeps have to be short while limits are running.
    """

    def __init__(self, now: float, computed: float) -> None:
        self._since, self._computed = now, computed
        self._asked_s: float | None = None  # None: awake
        self._gap_s = 0.0

    def before_sleep(self, seconds: float, now: float, computed: float) -> None:
        """Note the start of a sleep of `seconds`."""
        self._gap_s = _gap(now - self._since - (computed - self._computed))
        self._since, self._asked_s = now, seconds

    def after_sleep(self, now: float, computed: float) -> float:
        """Note the end of a sleep and return the seconds in which the process did not run; usually 0."""
        assert self._asked_s is not None, "it did not sleep"
        gap = self._gap_s + _gap(now - self._since - self._asked_s)
        self._since, self._computed, self._asked_s = now, computed, None
        return gap


def _gap(seconds: float) -> float:
    return seconds if seconds >= _SHORTEST_GAP_S else 0.0

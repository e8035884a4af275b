"""Things that are due at a moment, and when the next one is."""

from __future__ import annotations

import heapq
from collections.abc import Callable

_SMALL = 64  # below this many dead entries the heap is left alone
_AGAIN_S = 1.0  # when an action that there was no memory for is repeated
_SHORTEST_GAP_S = 0.25  # a shorter one is a busy machine's, and nothing is forgiven for it


class Deadline:
    """One thing that is due; `cancel` it through the Deadlines that made it."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[float], None]) -> None:
        self.when = when
        self.action: Callable[[float], None] | None = action


class Deadlines:
    """A heap with lazy deletion: an eval sets one and nearly always cancels it, so both must be cheap."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._count = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def call_at(self, when: float, action: Callable[[float], None]) -> Deadline:
        """Call `action(now)` in the first `run_due` at or after `when` (seconds, monotonic)."""
        deadline = Deadline(when, action)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, deadline))
        return deadline

    def cancel(self, deadline: Deadline | None) -> None:
        """Forget it. None, done and cancelled ones are fine."""
        if deadline is None or deadline.action is None:
            return
        deadline.action = None
        self._dead += 1
        if self._dead > _SMALL and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def shift(self, seconds: float) -> None:
        """Put all of them off: nothing could be done about any of them for this long."""
        for _, _, deadline in self._heap:
            deadline.when += seconds
        self._heap = [(when + seconds, count, deadline) for when, count, deadline in self._heap]  # in the same order

    def next_due(self) -> float | None:
        """When the earliest one is due, or None."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
            self._dead -= 1
        return heap[0][0] if heap else None

    def run_due(self, now: float) -> None:
        """Run what is due, earliest first."""
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
    """Time in which this process did not run: stopped by a signal, frozen, or its machine suspended.

    A loop tells before and after each of its sleeps what the time is (monotonic) and how long its thread has computed.
    A sleep that lasted longer than was asked for is a gap, and so is time between two sleeps in which nothing was
    computed: a loop that is merely busy has none. A gap within a sleep that something ended early is not seen, so
    sleeps are to be short while limits run.
    """

    def __init__(self, now: float, computed: float) -> None:
        self._since, self._computed = now, computed
        self._asked_s: float | None = None  # None: awake
        self._gap_s = 0.0

    def before_sleep(self, seconds: float, now: float, computed: float) -> None:
        """Before a sleep of this length."""
        self._gap_s = _gap(now - self._since - (computed - self._computed))
        self._since, self._asked_s = now, seconds

    def after_sleep(self, now: float, computed: float) -> float:
        """After it: the seconds in which the process did not run since the last call; mostly 0."""
        assert self._asked_s is not None, "it did not sleep"
        gap = self._gap_s + _gap(now - self._since - self._asked_s)
        self._since, self._computed, self._asked_s = now, computed, None
        return gap


def _gap(seconds: float) -> float:
    return seconds if seconds >= _SHORTEST_GAP_S else 0.0

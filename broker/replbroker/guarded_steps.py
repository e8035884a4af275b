"""Steps of the event loop that outlast a lack of memory or of file descriptors."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

_BREATH_S = 0.005  # what is at its limit is not to be asked as fast as can be
_LONGEST_PAUSE_S = 1.0

Step = Callable[[float], object]


class GuardedSteps:
    """Run what is due, and go on when the machine has no memory or no descriptor for it.

    A step that fails is repeated after a pause, which doubles for as long as it fails: no busy loop.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        """`report` gets a text when a step fails otherwise than the one before."""
        self._report = report
        self._reported = ""
        self._steps: list[tuple[Callable[[], float | None], Step]] = []
        self._pauses: dict[Step, tuple[float, float]] = {}  # its length in seconds, and its end
        self.failures = 0

    def add(self, due: Callable[[], float | None], step: Step) -> None:
        """Run `step(now)` whenever `due()` has come (monotonic seconds)."""
        self._steps.append((due, step))

    def next_due(self) -> float | None:
        """Return when `run_due` is wanted next, or None."""
        earliest: float | None = None
        for due, step in self._steps:
            at = due()
            if at is not None:
                if step in self._pauses:
                    at = max(at, self._pauses[step][1])
                earliest = at if earliest is None else min(earliest, at)
        return earliest

    def run_due(self, now: float) -> None:
        """Run every step that is due and not paused, in the order they were added."""
        for due, step in self._steps:
            at = due()
            if at is None or at > now or (step in self._pauses and self._pauses[step][1] > now):
                continue
            if self._run(step, now):
                self._pauses.pop(step, None)
            else:
                length = min(_LONGEST_PAUSE_S, 2 * self._pauses.get(step, (_BREATH_S / 2, 0.0))[0])
                self._pauses[step] = length, now + length

    def run(self, step: Callable[[], object]) -> None:
        """Run something that has come. After a failure the loop rests for a moment."""
        try:
            step()
        except (OSError, MemoryError) as error:
            self.failed(error)
            time.sleep(_BREATH_S)

    def _run(self, step: Step, now: float) -> bool:
        try:
            step(now)
        except (OSError, MemoryError) as error:
            self.failed(error)
            return False
        return True

    def failed(self, error: OSError | MemoryError) -> None:
        """Count a failure, and report it once."""
        self.failures += 1
        what = f"{type(error).__name__}: {error}"
        if what != self._reported:
            self._reported = what
            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            self._report(f"short of memory or descriptors, going on: {what}\n{where}")

"""Steps of the event loop that outlast a lack of memory or of file descriptors."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable

_PAUSE_S = 0.005  # before anything is tried again at a limit
_MAX_PAUSE_S = 1.0
_log = logging.getLogger(__name__)

Step = Callable[[float], object]


class GuardedSteps:
    """Runner of steps that goes on when the machine has no memory or no descriptor for one.

    A step that fails is repeated after a pause, which doubles for as long as the step fails.

    Attributes:
        failures: How many steps have failed.
    """

    def __init__(self) -> None:
        self._last_shortage = ""
        self._steps: list[tuple[Callable[[], float | None], Step]] = []
        self._pauses: dict[Step, tuple[float, float]] = {}  # length in seconds, and end
        self.failures = 0

    def add(self, due: Callable[[], float | None], step: Step) -> None:
        """Run `step(now)` whenever the monotonic time `due()` has come."""
        self._steps.append((due, step))

    def next_due(self) -> float | None:
        """Return the monotonic time at which `run_due` should be called next, or None."""
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
            try:
                step(now)
            except (OSError, MemoryError) as error:
                self.on_failure(error)
                length = min(_MAX_PAUSE_S, 2 * self._pauses.get(step, (_PAUSE_S / 2, 0.0))[0])
                self._pauses[step] = length, now + length
            else:
                self._pauses.pop(step, None)

    def run(self, step: Callable[[], object]) -> None:
        """Run a step for something that has come; pause for a moment if it fails."""
        try:
            step()
        except (OSError, MemoryError) as error:
            self.on_failure(error)
            time.sleep(_PAUSE_S)

    def on_failure(self, error: OSError | MemoryError) -> None:
        """Count a failure, and log it if it is another one than the last."""
        self.failures += 1
        shortage = f"{type(error).__name__}: {error}"
        if shortage != self._last_shortage:
            self._last_shortage = shortage
            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            _log.warning("short of memory or descriptors, going on: %s\n%s", shortage, where)

"""Automatic checkpoints: after an answer, while the session idles; under load once a second or every 100 evals."""

from __future__ import annotations

import math
import time

from replwire.deadlines import Deadline, Deadlines
from replworker.checkpoints.reports import CheckpointReports
from replworker.checkpoints.taker import CheckpointKeeper, TakenCheckpoint
from replworker.session_streams import SessionStreams

_IDLE_S = 0.001  # without a further request the session idles
_MAX_INTERVAL_S = 1.0  # between checkpoints of a busy session
_MAX_EVALS = 100  # likewise


class AutomaticCheckpoints:
    """Takes a checkpoint after each eval that may have changed anything, if possible without delaying the next one.

    It begins at once if the last pause between two evals would have been long enough for the last checkpoint, and
    otherwise when the session has idled for as long as a checkpoint takes.
    """

    def __init__(
        self, taker: CheckpointKeeper, streams: SessionStreams, timers: Deadlines, reports: CheckpointReports
    ) -> None:
        self._taker = taker
        self._streams = streams
        self._timers = timers
        self._reports = reports
        self._timer: Deadline | None = None
        self._begun = 0.0  # when the last one was begun
        self._duration = 0.0  # how long it took
        self._last_end = -math.inf  # when the last eval ended
        self._pause = math.inf  # between the last two evals
        self._evals = 0
        self.is_on = False

    @property
    def is_waiting(self) -> bool:
        """True if a checkpoint will be taken unless an eval begins."""
        return self._timer is not None

    def on_eval_start(self, now: float) -> None:
        """Postpone the checkpoint: the session does not idle."""
        self._pause = now - self._last_end
        self._stop_timer()

    def on_eval_end(self, now: float) -> None:
        """Take a checkpoint soon, or now if the last one is too old."""
        self._last_end = now
        if not self.is_on:
            return
        self._evals += 1
        if self._evals >= _MAX_EVALS or now - self._begun >= _MAX_INTERVAL_S:
            self.take(now)
        else:
            self._start_timer(now)

    def take(self, now: float) -> None:
        """Take a checkpoint if anything may have changed and nothing runs."""
        self._stop_timer()
        taker = self._taker
        if not self.is_on or taker.is_busy or not taker.tree.changed or self._streams.evals.running is not None:
            return
        self.take_first(now)

    def take_first(self, now: float) -> int:
        """Take a checkpoint, of an interpreter whose session may not have begun yet; return its number."""
        self._begun, self._evals = now, 0
        return self._taker.take(self._on_taken, automatic=True).number

    def _on_taken(self, taken: TakenCheckpoint) -> None:
        """Take the next one if evals ran meanwhile. One that fails leaves the newest in place until the next eval."""
        now = time.monotonic()
        if taken.error is None and self.is_on:
            self._reports.add(now)
        self._duration = now - self._begun
        if taken.error is None and self._taker.tree.changed and self._timer is None:
            self._start_timer(now)

    def _start_timer(self, now: float) -> None:
        fits = self._pause >= _IDLE_S + self._duration
        self._timer = self._timers.call_at(now + (_IDLE_S if fits else max(_IDLE_S, self._duration)), self.take)

    def _stop_timer(self) -> None:
        self._timers.cancel(self._timer)
        self._timer = None

"""Metrics: how long evals ran and waited, how they ended, and what agents used. Counted always: it is cheap."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from typing import Any

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_MAX_AGENTS = 1000  # counted by name; those beyond are counted as one
OTHERS = "(others)"


class Histogram:
    """A histogram of durations in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, int]]:
        """Return upper bounds, and how many durations were at most that, as Prometheus has them."""
        total, found = 0, []
        for bound, count in zip([*map(str, _BOUNDS), "+Inf"], self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found


class Metrics:
    """The metrics of one broker."""

    def __init__(self) -> None:
        self.run_seconds = Histogram()
        self.queue_seconds = Histogram()
        self.worker_starts = Histogram()
        self.branches = 0
        self.hibernations = 0
        self.rollbacks: Counter[str] = Counter()  # by reason: `request` or `crash`
        self.evals_ended: Counter[str] = Counter()
        self.connections: Counter[str] = Counter()  # of sessions with a list of hosts, by how they ended
        self.network_bytes: Counter[str] = Counter()
        self.cpu_seconds: OrderedDict[str, float] = OrderedDict()  # by agent, of exited workers too

    def add_cpu(self, agent: str | None, seconds: float) -> None:
        """Add processor time of an agent's session."""
        name = agent or ""
        if name not in self.cpu_seconds and len(self.cpu_seconds) >= _MAX_AGENTS:
            name = OTHERS
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + seconds

    def snapshot(self) -> dict[str, Any]:
        """Return all metrics as data."""
        return {
            "ended": dict(self.evals_ended),
            "connections": dict(self.connections),
            "network-bytes": dict(self.network_bytes),
            "branches": self.branches,
            "hibernations": self.hibernations,
            "rollbacks": dict(self.rollbacks),
            "cpu-seconds": {name: round(seconds, 3) for name, seconds in self.cpu_seconds.items()},
            "ran": dict(self.run_seconds.buckets()),
            "waited": dict(self.queue_seconds.buckets()),
            "worker-starts": dict(self.worker_starts.buckets()),
        }

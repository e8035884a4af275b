"""One caller's eval while others have sessions too: idle ones, and ones that evaluate ten small things a second."""

from __future__ import annotations

import time

from bench import ours
from bench.stats import BenchTable, SampleRow
from bench.throughput import go, loaders
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

_CROWDS = (10, 50, 100)
_PAUSE_MS = 100
_ALONE = "ours, nobody else"
_PER_LOADER = 25
_US = 1e6


def measure(plan: BenchPlan) -> list[BenchTable]:
    """One table. The broker's bound on sessions is raised, nothing else differs from a plain one."""
    many = plan.of(600, 100)
    rows = []
    with ours.broker() as broker:
        raw = broker.raw()
        raw.call("new-session", name="probe")

        def probe() -> list[float]:
            seconds = time_in_turns({_ALONE: TimedCall(lambda: raw.eval("1+1", "probe"), many)}, 3)
            return scale(seconds[_ALONE], _US)

        rows.append(SampleRow(_ALONE, "ours", probe()))
        for crowd in _CROWDS:
            names = [f"s{number}" for number in range(crowd)]
            orders = [
                ["ours", "1", str(_PAUSE_MS), broker.endpoint, *names[first : first + _PER_LOADER]]
                for first in range(0, crowd, _PER_LOADER)
            ]
            with loaders(orders) as running:
                rows.append(SampleRow(f"ours, {crowd} idle sessions", "ours", probe()))
                go(running)
                time.sleep(0.5)
                rows.append(SampleRow(f"ours, {crowd} sessions at {1000 // _PAUSE_MS} evals/s each", "ours", probe()))
            for name in names:
                raw.call("close", session=name)
    return [BenchTable("crowd", "Round trip of `1+1` among other sessions", "us", _ALONE, rows)]

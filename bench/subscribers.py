"""1000 subscriptions to the events of evals: what they cost who evaluates, and whether each has all or is told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench import ours, procs
from bench.stats import BenchTable, Check, SampleRow
from bench.turns import BenchPlan, scale

NONE, FEW, MANY = "no subscriber", "1000 subscriptions in 10 connections", "1000 subscriptions in 1000 connections"
_SHAPES = {NONE: (0, 0), FEW: (5, 100), MANY: (500, 1)}  # connections of each process, subscriptions of each of them
_PROCESSES = 2
_EACH = 10
_OF_AN_EVAL = 3  # events: accepted, started, finished
_MS = 1e3


@dataclass
class _SubscribedBroker:
    """A broker, who evaluates in it and who listens."""

    broker: ours.BenchBroker
    raw: ours.RawClient
    readers: list[subprocess.Popen[str]]
    subscriptions: int
    evals: int = 0

    def round(self, evals: int) -> tuple[list[float], int, int, float]:
        """Run so many evals, and wait until all is quiet again.

        Returns the seconds of each eval, the events that came, those reported as missed, and the milliseconds from the
        last answer to the last of them.
        """
        seconds = []
        for _ in range(evals):
            began = time.perf_counter()
            self.raw.eval("1", "probe")
            seconds.append(time.perf_counter() - began)
        self.evals += evals
        for reader in self.readers:
            procs.send_line(reader)
        results = [json.loads(procs.read_line(reader, 60)) for reader in self.readers]
        came = sum(count for each in results for kind, count in each["events"].items() if kind != "bus/lagged")
        late = max((each["last"] for each in results), default=0.0)
        return seconds, came, sum(each["missed"] for each in results), late


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Four tables: the first eval of a burst, evals a second in bursts, events that came, and the broker's memory."""
    with ExitStack() as stack:
        houses = {who: _start_broker(stack, *shape) for who, shape in _SHAPES.items()}
        before = {who: procs.pss_mb(house.broker.pid) for who, house in houses.items()}
        for house in houses.values():
            house.round(0)
        seconds: dict[str, list[float]] = {who: [] for who in houses}
        result = dict.fromkeys(houses, (0, 0, 0.0))
        for _ in range(plan.of(20, 5)):
            for who, house in houses.items():
                took, came, missed, late = house.round(_EACH)
                seconds[who] += took
                result[who] = result[who][0] + came, result[who][1] + missed, max(result[who][2], late)
        return [
            BenchTable(
                "subscribers",
                "Round trip of `1` with 1000 subscriptions, when all is quiet",
                "ms",
                NONE,
                [SampleRow(who, "ours", scale(kept[::_EACH], _MS)) for who, kept in seconds.items()],
            ),
            BenchTable(
                "subscribers-rate",
                "Evals a second with 1000 subscriptions, in bursts of ten",
                "evals/s",
                NONE,
                [SampleRow(who, "ours", _rates(kept)) for who, kept in seconds.items()],
                True,
            ),
            _arrival_table(houses, result),
            BenchTable(
                "subscribers-memory",
                "PSS of the broker, after it",
                "MB",
                NONE,
                [
                    SampleRow(who, "ours", [procs.pss_mb(house.broker.pid)], f"{before[who]:.1f} before the first eval")
                    for who, house in houses.items()
                ],
            ),
        ]


def _start_broker(stack: ExitStack, connections: int, each: int) -> _SubscribedBroker:
    broker = stack.enter_context(
        ours.broker(settings=["transcript.backend=off"], max_connections=2000, max_subscriptions=1000)
    )
    raw = broker.raw()
    raw.call("new-session", name="probe")
    readers = []
    for _ in range(_PROCESSES if connections else 0):
        argv = [sys.executable, "-m", "bench.listen", broker.endpoint, str(connections), str(each)]
        readers.append(procs.start(argv))
        stack.callback(procs.stop, readers[-1])
    for reader in readers:
        procs.read_line(reader, 60)
    return _SubscribedBroker(broker, raw, readers, _PROCESSES * connections * each)


def _rates(seconds: list[float]) -> list[float]:
    return [_EACH / sum(seconds[at : at + _EACH]) for at in range(0, len(seconds), _EACH)]


def _arrival_table(houses: dict[str, _SubscribedBroker], expected: dict[str, tuple[int, int, float]]) -> BenchTable:
    table = BenchTable(
        "subscribers-events", "Of 100 events for a subscription, those that came", "of 100", FEW, [], True
    )
    for who, (came, missed, late_ms) in expected.items():
        house = houses[who]
        if not house.readers:
            continue
        made = house.evals * house.subscriptions * _OF_AN_EVAL
        note = f"{made:,} events made, {came:,} came, {missed:,} told as missed; the last {late_ms:.0f} ms after it"
        table.rows.append(SampleRow(who, "ours", [100 * came / made], note))
        table.checks.append(Check(f"came or told as missed, {who}", (came + missed) / made, 1, at_most=False))
    return table

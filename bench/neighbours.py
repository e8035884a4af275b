"""Effect of one client's traffic on another's: evals and pings of a calm agent, quiet and beside each kind of nuisance.

Quiet and loud phases take turns, and each loud one is compared with the quiet one before it: the ratio is the median of
these. Two rows have no traffic: what a processor that is taken costs on this machine is in every other row as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from bench import procs, shared
from bench.calm import Samples
from bench.stats import BenchTable, Check, SampleRow, median, number, p99
from bench.turns import BenchPlan

_QUIET = "quiet"
_MOST_PING_MS, _MOST_P50, _MOST_P99 = 100.0, 1.5, 2.0
_TIMEOUT_S = 120.0  # for a calm agent that is kept waiting
_REST_S = 0.3
# The calm agent asks 200 times a second, and may; a flood is far beyond.
_SETTINGS = ("limits.rate-limit-per-min=30000",)
_NO_TRAFFIC = {
    "spinning": "a program that takes a processor (no traffic)",
    "computing": "a session that computes (no traffic)",
}
_TRAFFIC = {
    "lines {}": "lines `{}`, 64 KiB at a time",
    "lines x": "lines `x`, 64 KiB at a time",
    "line pings": "lines that are pings, beyond the rate limit",
    "pings": "pings over ZeroMQ, beyond the rate limit",
    "large": "evals of 1 MB, one after the other",
    "churn": "connections that come and go at a TCP port, 20 000 others in the kernel",
    "hog": "20 labels with jobs for all slots and more",
    "subscriptions": "200 subscriptions that are never read",
    "output": "a session that prints without end",
}


class QuietLoudPair(NamedTuple):
    """Samples of the calm agent before, and beside, a neighbour."""

    quiet: Samples
    loud: Samples


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Evals and pings, with the bars as checks; then how evenly slots go round, and what many connections do."""
    rounds, seconds = plan.of(3, 1), 1.5
    quiet: list[Samples] = []
    turns: dict[str, list[QuietLoudPair]] = {}
    for kind in _NO_TRAFFIC | _TRAFFIC:
        with (
            shared.broker(_SETTINGS) as broker,
            _start_calm_agent(broker) as calm,
            start_neighbour(kind, broker) as loud,
        ):
            turns[kind] = []
            for _ in range(rounds):
                before = calm(seconds)
                with loud(seconds):
                    beside = calm(seconds - _REST_S)
                turns[kind].append(QuietLoudPair(before, beside))
                quiet.append(before)
    return [_table(what, quiet, turns) for what in ("eval", "ping")]


@contextmanager
def _start_calm_agent(broker: shared.SharedBroker) -> Iterator[Callable[[float], Samples]]:
    """Start the calm agent."""
    process = procs.start_module("calm", str(shared.CALM_UID), broker.zmq)
    try:
        procs.read_line(process)

        def calm(seconds: float) -> Samples:
            procs.send_line(process, str(seconds))
            return msgspec.json.decode(procs.read_line(process, _TIMEOUT_S), type=Samples)

        calm(0.5)
        yield calm
    finally:
        procs.stop(process)


@contextmanager
def start_neighbour(kind: str, broker: shared.SharedBroker) -> Iterator[Callable[[float], Any]]:
    """Start the other client, which loads the broker for a given time, and waits afterwards."""
    process = procs.start_module("flood", kind, str(shared.NOISY_UID), broker.zmq, broker.lines)

    @contextmanager
    def loud(seconds: float) -> Iterator[None]:
        procs.send_line(process, str(seconds))
        time.sleep(_REST_S / 2)
        yield
        procs.read_line(process, _TIMEOUT_S)
        procs.settle()

    try:
        procs.read_line(process)
        yield loud
    finally:
        procs.stop(process)


class NeighbourTable(BenchTable):
    """A table whose rows say beside whom, how much slower than the quiet phases before, and the worst sample."""

    slowdown: dict[str, tuple[float, float]]  # p50 and p99, of that in the quiet phases

    def markdown(self) -> str:
        """Heading, rows, verdicts."""
        lines = [
            f"### {self.title}",
            "",
            f"Our sessions: {self.sessions}; {shared.users()}.",
            "",
            f"| {self.unit} | p50 | p99 | worst | n | x p50 of quiet | x p99 of quiet | |",
            "|---|--:|--:|--:|--:|--:|--:|---|",
        ]
        for row in self.rows:
            numbers = [number(each) for each in (row.p50, p99(row.samples), max(row.samples))]
            ratios = [number(each) for each in self.slowdown.get(row.who, (1.0, 1.0))]
            lines.append(f"| {' | '.join([row.who, *numbers, str(len(row.samples)), *ratios, row.note])} |")
        return "\n".join([*lines, "", *(f"- {check.text()}" for check in self.checks)]) + "\n"


def _table(what: str, quiet: list[Samples], turns: dict[str, list[QuietLoudPair]]) -> NeighbourTable:
    rows = [SampleRow(_QUIET, "ours", [us for each in quiet for us in getattr(each, what)])]
    slower: dict[str, tuple[float, float]] = {}
    for kind, who in (_NO_TRAFFIC | _TRAFFIC).items():
        pairs = [(getattr(turn.quiet, what), getattr(turn.loud, what)) for turn in turns[kind]]
        refused = sum(turn.loud.refused for turn in turns[kind])
        note = f"{refused} refused" * (refused > 0)
        rows.append(SampleRow(who, "ours", [us for _, loud in pairs for us in loud], note))
        slower[who] = (
            median([median(loud) / median(quiet) for quiet, loud in pairs]),
            median([p99(loud) / p99(quiet) for quiet, loud in pairs]),
        )
    table = NeighbourTable(f"neighbours-{what}", f"A calm agent's {what} beside others", "us", _QUIET, rows)
    table.slowdown = slower
    traffic = list(_TRAFFIC.values())
    for at, figure, bound in ((0, "p50", _MOST_P50), (1, "p99", _MOST_P99)):
        for who in traffic:
            table.checks.append(Check(f"{figure} of {what}s beside {who}", slower[who][at], bound, True))
    if what == "ping":
        for who in traffic:
            worst_ms = max(table.row(who).samples) / 1000
            table.checks.append(Check(f"worst ping beside {who}", worst_ms, _MOST_PING_MS, True, "ms"))
    return table

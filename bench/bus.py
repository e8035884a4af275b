"""Cost of watching an eval: events, transcripts, subscribers and traces, each switched on alone, and all at once.

The brokers differ in that alone, and are measured in turns, in many short rounds: each round gives a ratio to the
broker with everything off in that very round, and the median of these ratios is what is held against the bound.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from bench import ours, procs
from bench.stats import BenchTable, Check, SampleRow, median
from bench.turns import WARM_UP, BenchPlan, TimedCall, scale, time_in_turns

OFF, SAME = "everything off", "everything off, a second broker"
JSONL, SQLITE = "transcript, JSON lines (the default)", "transcript, SQLite"
SUBSCRIBER, TRACES, ALL = "one subscriber", "traces", "all of these"
_BOUND = 1.1  # of the round trip with everything off
_EACH = 40
_US = 1e6

_NONE, _LINES, _TABLE = (f"transcript.backend={backend}" for backend in ("off", "jsonl", "sqlite"))


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Three tables: one eval after the other, what the brokers worked for that, and after 5 ms of silence."""
    with ExitStack() as stack:
        sink = procs.start_module("sink")
        stack.callback(procs.stop, sink)
        traces = f"trace.otlp={procs.read_line(sink).strip()}"
        kinds = {
            OFF: [_NONE],
            SAME: [_NONE],
            JSONL: [_LINES],
            SQLITE: [_TABLE],
            SUBSCRIBER: [_NONE],
            TRACES: [_NONE, traces],
            ALL: [_TABLE, traces, "metrics.listen=127.0.0.1:0"],
        }
        turns: dict[str, TimedCall] = {}
        pids: dict[str, int] = {}
        for who, settings in kinds.items():
            broker = stack.enter_context(ours.broker(settings=settings))
            raw = broker.raw()
            raw.call("new-session", name="probe")
            pids[who] = broker.pid
            if who in (SUBSCRIBER, ALL):
                reader = procs.start([sys.executable, "-m", "bench.listen", broker.endpoint, "1", "1"])
                stack.callback(procs.stop, reader)
                procs.read_line(reader)
            turns[who] = TimedCall(lambda raw=raw: raw.eval("1", "probe"), _EACH)  # type: ignore[misc]
        before = {who: procs.processor_s(pid) for who, pid in pids.items()}
        rounds = plan.of(100, 20)
        trips = _table("bus", "Round trip of `1` with what looks on", turns, rounds)
        used = {who: procs.processor_s(pid) - before[who] for who, pid in pids.items()}
        evals = rounds * (_EACH + WARM_UP)
        work = [SampleRow(who, "ours", [seconds / evals * _US]) for who, seconds in used.items()]
        return [
            trips,
            BenchTable(
                "bus-work", "Processor time of the broker, all its threads, for each of these evals", "us", OFF, work
            ),
            _table("bus-quiet", "The same after 5 ms of silence", turns, plan.of(20, 5), 0.005),
        ]


def _table(name: str, title: str, turns: dict[str, TimedCall], rounds: int, silence_s: float = 0.0) -> BenchTable:
    seconds = time_in_turns(turns, rounds, silence_s)
    middles = {
        who: [median(kept[at : at + _EACH]) for at in range(0, len(kept), _EACH)] for who, kept in seconds.items()
    }
    table = BenchTable(name, title, "us", OFF, [])
    for who, kept in seconds.items():
        ratio = median([one / base for one, base in zip(middles[who], middles[OFF], strict=True)])
        table.rows.append(SampleRow(who, "ours", scale(kept, _US), f"{ratio:.3f} x, median of the rounds"))
        if who not in (OFF, SAME, TRACES):
            table.checks.append(Check(f"{who}, of {OFF}", ratio, _BOUND, at_most=True))
    return table

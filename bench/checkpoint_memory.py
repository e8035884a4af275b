"""Branches, chains of rollbacks, and the memory of checkpoints."""

from __future__ import annotations

import itertools
import time

from bench import ours, procs
from bench.stats import BenchTable, Check, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

CLONE, BRANCH = "clone and an eval", "branch and an eval"
FIRST, LAST = "the first five", "the last five"
_BRANCH_MS, _CHAIN_X, _COPIES_X, _IDLE_MB = 8, 1.2, 2.5, 2  # the bars
_COPIES = 50
_HUNDRED_MB = "import numpy; x, data = 0, numpy.ones(100_000_000 // 8)"
_WRITE_ONE_PERCENT = "x += 1; at = x * len(data) // 100; data[at : at + len(data) // 100] = x"
_MANUAL = ("session.checkpoints=manual", "limits.max-checkpoints=100", f"limits.max-checkpoint-bytes={4 << 30}")
_SANDBOX = {"memory-bytes": 4 << 30, "file-bytes": 2 << 30}  # by default a session may hold 1 GiB
_MS = 1e3


def measure_branches(plan: BenchPlan) -> BenchTable:
    """Return the time from the request to the first answer of the new session, after a write to the source."""
    with ours.broker(sandbox_limits=_SANDBOX, settings=["session.checkpoints=auto"]) as broker:
        raw = broker.raw()
        raw.call("new-session", name="source")
        raw.eval(_HUNDRED_MB, "source")
        names = (f"n{number}" for number in itertools.count())
        opened: list[str] = []

        def open_with(op: str) -> None:
            opened.append(next(names))
            raw.call(op, session="source", name=opened[-1])
            assert raw.eval("x", opened[-1]) == "0"

        def prepare() -> None:
            if opened:
                raw.call("close", session=opened.pop())
            raw.eval("data[7] += 1", "source")
            raw.wait_warm(2)

        turns = {
            CLONE: TimedCall(lambda: open_with("clone"), 3, prepare),
            BRANCH: TimedCall(lambda: open_with("branch"), 5, prepare),
        }
        seconds = time_in_turns(turns, plan.of(8, 3))
    rows = [SampleRow(who, "ours", scale(kept, _MS)) for who, kept in seconds.items()]
    table = BenchTable("checkpoints-branch", "A new session with the state of another, 100 MB", "ms", CLONE, rows)
    table.checks.append(Check(BRANCH, table.row(BRANCH).p50, _BRANCH_MS, at_most=True, unit="ms"))
    return table


def measure_chain(plan: BenchPlan) -> BenchTable:
    """Return the time of rollbacks in a chain: each goes to a checkpoint that was taken after the one before."""
    samples: dict[str, list[float]] = {FIRST: [], LAST: []}
    for _ in range(plan.of(5, 2)):
        with ours.broker(sandbox_limits=_SANDBOX, settings=_MANUAL) as broker:
            raw = broker.raw()
            raw.call("new-session", name="s")
            raw.eval(_HUNDRED_MB, "s")
            took = []
            for turn in range(_COPIES):
                number = raw.call("checkpoint", session="s").checkpoint
                raw.eval("x = -1", "s")
                began = time.perf_counter()
                raw.call("rollback", session="s", to=number)
                assert raw.eval("x", "s") == str(turn)
                took.append((time.perf_counter() - began) * _MS)
                raw.eval(f"x = {turn + 1}", "s")
            samples[FIRST] += took[:5]
            samples[LAST] += took[-5:]
    rows = [SampleRow(who, "ours", kept) for who, kept in samples.items()]
    title = f"From a rollback to the first answer in a chain of {_COPIES}, 100 MB"
    table = BenchTable("checkpoints-chain", title, "ms", FIRST, rows)
    ratio = table.row(LAST).p50 / table.row(FIRST).p50
    table.checks.append(Check(f"{LAST} of {FIRST}", ratio, _CHAIN_X, at_most=True))
    return table


def measure_memory(plan: BenchPlan) -> BenchTable:
    """Return the memory of a session, its worker included, without and with checkpoints."""
    found: dict[str, list[float]] = {}
    for _ in range(plan.of(3, 1)):
        with ours.broker(sandbox_limits=_SANDBOX, settings=_MANUAL) as broker:
            raw = broker.raw()
            for name, code in (("idle", "x = 0"), ("large", _HUNDRED_MB)):
                raw.call("new-session", name=name)
                raw.eval(code, name)
                procs.settle()
                pid = raw.info(name)["pid"]
                found.setdefault(f"{name}, no checkpoint", []).append(broker.session_mb(pid))
                raw.call("checkpoint", session=name)
                procs.settle()
                found.setdefault(f"{name}, one checkpoint", []).append(broker.session_mb(pid))
            for _ in range(_COPIES - 1):
                raw.eval(_WRITE_ONE_PERCENT, "large")
                raw.call("checkpoint", session="large")
            procs.settle()
            found.setdefault(f"large, {_COPIES} checkpoints", []).append(broker.session_mb(raw.info("large")["pid"]))
    rows = [SampleRow(who, "ours", kept) for who, kept in found.items()]
    title = f"PSS of a session: idle, and 100 MB of arrays of which 1 % changes before each of {_COPIES} checkpoints"
    table = BenchTable("checkpoints-memory", title, "MB", rows[0].who, rows)
    more = table.row("idle, one checkpoint").p50 - table.row("idle, no checkpoint").p50
    many = table.row(f"large, {_COPIES} checkpoints").p50 / table.row("large, no checkpoint").p50
    table.checks.append(Check("one checkpoint of an idle session", more, _IDLE_MB, at_most=True, unit="MB"))
    table.checks.append(Check(f"{_COPIES} checkpoints beside none", many, _COPIES_X, at_most=True))
    return table

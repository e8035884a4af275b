"""Cost of checkpoints: evals beside a broker without them, the way back to the first answer, branches and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec

from bench import ours, procs
from bench.checkpoint_files import measure_files
from bench.checkpoint_memory import measure_branches, measure_chain, measure_memory
from bench.stats import BenchTable, Role, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

OFF, AUTO = "checkpoints off", "checkpoints auto"
RESET, UNDO, CRASH = "reset and an eval", "rollback and an eval", "a crash and the next eval"
_ROLES: dict[str, Role] = {OFF: "floor", AUTO: "ours"}
_THINK_S = 0.005
_SANDBOX = {"memory-bytes": 4 << 30, "file-bytes": 2 << 30}  # by default a session may hold 1 GiB
_STATES = {
    "a small state": "x, data = 0, [0] * 1000",
    "30 MB of arrays": "import numpy; x, data = 0, numpy.ones(30_000_000 // 8)",
    "1 GB of arrays": "import numpy; x, data = 0, numpy.ones(1_000_000_000 // 8)",
}
_SMALL_OBJECTS = "1 GB of small objects", "x, data = 0, [bytes(1000) for _ in range(1_000_000)]"
_WRITE = "x += 1; data[x % 1000] = x"
_MS = 1e3


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Return tables for evals and for the way back, by the size of the state."""
    states = {name: code for name, code in _STATES.items() if "numpy" not in code or find_spec("numpy")}
    if plan.quick:
        states.pop("1 GB of arrays", None)
    found = [table for name, code in states.items() for table in _evals(plan, name, code)]
    back = states if plan.quick else states | dict([_SMALL_OBJECTS])
    found += [_way_back(plan, name, code) for name, code in back.items()]
    found += [part(plan) for part in (measure_branches, measure_chain, measure_memory) if find_spec("numpy")]
    return [*found, measure_files(plan)]


def _evals(plan: BenchPlan, name: str, code: str) -> list[BenchTable]:
    with ExitStack() as stack:
        brokers = {
            who: stack.enter_context(ours.broker(sandbox_limits=_SANDBOX, settings=[f"session.checkpoints={mode}"]))
            for who, mode in ((OFF, "off"), (AUTO, "auto"))
        }
        raws = {who: broker.raw() for who, broker in brokers.items()}
        for raw in raws.values():
            raw.call("new-session", name="s")
            raw.eval(code, "s")
            procs.settle(0.5)
        each, rounds = plan.of(100, 40), plan.of(5, 2)
        calls = {who: TimedCall(lambda raw=raw: raw.eval(_WRITE, "s"), each) for who, raw in raws.items()}  # type: ignore[misc]
        before = _newest(raws[AUTO])
        calm = time_in_turns(calls, rounds, silence_s=_THINK_S)
        time.sleep(0.1)
        taken = _newest(raws[AUTO]) - before
        dense = time_in_turns(calls, rounds)
        sent = rounds * (each + 3)
        return [
            _table(f"checkpoints-think-{_slug(name)}", f"{title}; {note}", samples)
            for title, note, samples in (
                (
                    f"An eval that writes after 5 ms of thinking, {name}",
                    f"{taken} checkpoints were taken in {sent} evals",
                    calm,
                ),
                (f"The same back to back, {name}", "one a second, or every 100 evals", dense),
            )
        ]


def _newest(raw: ours.RawClient) -> int:
    listed = raw.call("ls-checkpoints", session="s").checkpoints or []
    return max((int(each["checkpoint"]) for each in listed), default=0)


def _way_back(plan: BenchPlan, name: str, code: str) -> BenchTable:
    with ExitStack() as stack:
        broker = stack.enter_context(ours.broker(sandbox_limits=_SANDBOX, settings=["session.checkpoints=manual"]))
        raw = broker.raw()
        for session in ("undone", "crashed"):
            raw.call("new-session", name=session)
            raw.eval(code, session)
            raw.call("checkpoint", session=session)
        raw.call("new-session", name="reset")

        def undo() -> None:
            raw.call("rollback", session="undone", to=1)
            assert raw.eval("x", "undone") == "0"

        def crash() -> None:
            try:
                raw.eval("import os; os._exit(1)", "crashed")
            except ours.BenchRequestRefused:
                assert raw.eval("x", "crashed") == "0"

        def reset() -> None:
            raw.call("reset", session="reset")
            assert raw.eval("1+1", "reset") == "2"

        def change(session: str) -> Callable[[], object]:
            def prepare() -> None:
                raw.wait_warm(2)
                raw.eval("x = 1", session)

            return prepare

        each, rounds = 3, plan.of(10, 3)
        turns = {
            RESET: TimedCall(reset, each, change("reset")),
            UNDO: TimedCall(undo, each, change("undone")),
            CRASH: TimedCall(crash, each, change("crashed")),
        }
        seconds = time_in_turns(turns, rounds)
    rows = [SampleRow(who, "ours", scale(kept, _MS)) for who, kept in seconds.items()]
    title = f"From the request, or the crash, to the first answer, {name}"
    return BenchTable(f"checkpoints-back-{_slug(name)}", title, "ms", RESET, rows)


def _table(name: str, title: str, samples: dict[str, list[float]]) -> BenchTable:
    rows = [SampleRow(who, _ROLES[who], scale(kept, _MS)) for who, kept in samples.items()]
    return BenchTable(name, title, "ms", OFF, rows)


def _slug(name: str) -> str:
    return name.replace(" ", "-").lower()

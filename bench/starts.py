"""Fresh interpreters: a reset, and a new session, each up to the answer of a first eval."""

from __future__ import annotations

from contextlib import ExitStack

from bench import ours, peers
from bench.stats import BenchTable, Check, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

WARM, COLD = "ours, from the warm pool", "ours, cold (no pool)"
_POOL = 4
_MS = 1e3


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Two tables: reset, new session."""
    return [_resets(plan), _new_sessions(plan)]


def _resets(plan: BenchPlan) -> BenchTable:
    with ours.broker(_POOL) as warm, ours.broker(0) as cold, peers.kernel() as kernel:
        pooled, bare = warm.raw(), cold.raw()
        for raw in (pooled, bare):
            raw.call("new-session", name="s")

        def reset(raw: ours.RawClient) -> None:
            raw.call("reset", session="s")
            assert raw.eval("1+1", "s") == "2"

        def restart() -> None:
            kernel.restart()
            assert kernel.eval("1+1") == "2"

        turns = {
            WARM: TimedCall(lambda: reset(pooled), 6, before=lambda: pooled.wait_warm(_POOL)),
            COLD: TimedCall(lambda: reset(bare), 3, before=lambda: pooled.wait_warm(_POOL)),
            peers.NAME: TimedCall(restart, 1),
        }
        seconds = time_in_turns(turns, plan.of(10, 3))
    table = _table("reset", "Reset to the first answer (`restart_kernel` to the first answer)", seconds)
    table.checks.append(Check(f"{peers.NAME}, of {WARM}", table.ratio(peers.NAME, WARM), 100, at_most=False))
    return table


def _new_sessions(plan: BenchPlan) -> BenchTable:
    kernels: list[peers.JupyterKernel] = []

    def end_kernels() -> None:
        while kernels:
            kernels.pop().close()

    with ExitStack() as stack:
        stack.callback(end_kernels)
        pooled = stack.enter_context(ours.broker(_POOL)).raw()
        bare = stack.enter_context(ours.broker(0)).raw()

        def first(raw: ours.RawClient) -> None:
            assert raw.call("eval", **{"code": "1+1", "session": "s", "if-missing": "create"}).value == "2"

        def close(raw: ours.RawClient) -> None:
            if raw.stats()["sessions"]:
                raw.call("close", session="s")
            pooled.wait_warm(_POOL)

        def start() -> None:
            kernels.append(peers.JupyterKernel())
            kernels[-1].start()
            assert kernels[-1].eval("1+1") == "2"

        turns = {
            WARM: TimedCall(lambda: first(pooled), 6, before=lambda: close(pooled)),
            COLD: TimedCall(lambda: first(bare), 3, before=lambda: close(bare)),
            peers.NAME: TimedCall(start, 1, before=end_kernels),
        }
        seconds = time_in_turns(turns, plan.of(10, 3))
    table = _table("new-session", "New session to the first answer (start of a kernel to the first answer)", seconds)
    table.checks.append(Check(f"{peers.NAME}, of {WARM}", table.ratio(peers.NAME, WARM), 100, at_most=False))
    return table


def _table(name: str, title: str, seconds: dict[str, list[float]]) -> BenchTable:
    rows = [
        SampleRow(WARM, "ours", scale(seconds[WARM], _MS)),
        SampleRow(COLD, "ours", scale(seconds[COLD], _MS)),
        SampleRow(peers.NAME, "peer", scale(seconds[peers.NAME], _MS)),
    ]
    return BenchTable(name, title, "ms", WARM, rows)

"""Fresh interpreters: a reset, and a new session, each up to the answer of a first eval."""

from __future__ import annotations

from contextlib import ExitStack

from bench import ours, peers
from bench.stats import Check, Row, Table
from bench.turns import Plan, Turn, in_turns, scaled

WARM, COLD = "ours, from the warm pool", "ours, cold (no pool)"
_POOL = 4
_MS = 1e3


def measure(plan: Plan) -> list[Table]:
    """Two tables: reset, new session."""
    return [_resets(plan), _new_sessions(plan)]


def _resets(plan: Plan) -> Table:
    with ours.broker(_POOL) as warm, ours.broker(0) as cold, peers.kernel() as kernel:
        pooled, bare = warm.raw(), cold.raw()
        for raw in (pooled, bare):
            raw.call("new-session", name="s")

        def reset(raw: ours.Raw) -> None:
            raw.call("reset", session="s")
            assert raw.eval("1+1", "s") == "2"

        def restart() -> None:
            kernel.restart()
            assert kernel.eval("1+1") == "2"

        turns = {
            WARM: Turn(lambda: reset(pooled), 6, before=lambda: pooled.wait_warm(_POOL)),
            COLD: Turn(lambda: reset(bare), 3, before=lambda: pooled.wait_warm(_POOL)),
            peers.NAME: Turn(restart, 1),
        }
        seconds = in_turns(turns, plan.of(10, 3))
    table = _table("reset", "Reset to the first answer (`restart_kernel` to the first answer)", seconds)
    table.checks.append(Check(f"{peers.NAME}, of {WARM}", table.ratio(peers.NAME, WARM), 100, at_most=False))
    return table


def _new_sessions(plan: Plan) -> Table:
    kernels: list[peers.Kernel] = []

    def end_kernels() -> None:
        while kernels:
            kernels.pop().close()

    with ExitStack() as stack:
        stack.callback(end_kernels)
        pooled = stack.enter_context(ours.broker(_POOL)).raw()
        bare = stack.enter_context(ours.broker(0)).raw()

        def first(raw: ours.Raw) -> None:
            assert raw.call("eval", **{"code": "1+1", "session": "s", "if-missing": "create"}).value == "2"

        def close(raw: ours.Raw) -> None:
            if raw.stats()["sessions"]:
                raw.call("close", session="s")
            pooled.wait_warm(_POOL)

        def start() -> None:
            kernels.append(peers.Kernel())
            kernels[-1].start()
            assert kernels[-1].eval("1+1") == "2"

        turns = {
            WARM: Turn(lambda: first(pooled), 6, before=lambda: close(pooled)),
            COLD: Turn(lambda: first(bare), 3, before=lambda: close(bare)),
            peers.NAME: Turn(start, 1, before=end_kernels),
        }
        seconds = in_turns(turns, plan.of(10, 3))
    table = _table("new-session", "New session to the first answer (start of a kernel to the first answer)", seconds)
    table.checks.append(Check(f"{peers.NAME}, of {WARM}", table.ratio(peers.NAME, WARM), 100, at_most=False))
    return table


def _table(name: str, title: str, seconds: dict[str, list[float]]) -> Table:
    rows = [
        Row(WARM, "ours", scaled(seconds[WARM], _MS)),
        Row(COLD, "ours", scaled(seconds[COLD], _MS)),
        Row(peers.NAME, "peer", scaled(seconds[peers.NAME], _MS)),
    ]
    return Table(name, title, "ms", WARM, rows)

"""A trivial eval in each runtime through the broker, beside the same interpreter on pipes with an end mark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack

from bench import ours
from bench.piped import piped
from bench.stats import BenchTable, Role, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

_PLAIN, _SANDBOXED, _SILENCE_S, _US = "sandbox off", "sandbox on", 0.02, 1e6
_CODES = {"python": ("1+1", "2"), "node": ("1+1", "2"), "bash": ("echo 2", "2")}


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Two tables a runtime that this machine has: one eval after the other, and after 20 ms of silence."""
    with ExitStack() as stack:
        plain = stack.enter_context(ours.broker(sandbox=False)).raw()
        sandboxed = stack.enter_context(ours.broker()).raw()
        brokers = {_PLAIN: plain} | ({_SANDBOXED: sandboxed} if sandboxed.is_sandboxed() else {})
        tables = []
        for runtime in filter(shutil.which, ("bash", "node", "python3")):
            tables += _tables(plan, runtime.rstrip("3"), brokers)
        return tables


def _tables(plan: BenchPlan, runtime: str, brokers: dict[str, ours.RawClient]) -> list[BenchTable]:
    code, answer = _CODES[runtime]
    peer = f"{runtime} on pipes, an end mark"
    calls: dict[str, Callable[[], object]] = {}
    with piped(runtime) as alone:

        def mark() -> None:
            assert answer in alone.eval(code)

        def bare(raw: ours.RawClient) -> None:
            raw.printed = 0
            value = raw.eval(code, runtime)
            assert value == answer or raw.printed == len(answer) + 1

        calls[peer] = mark
        for who, raw in brokers.items():
            raw.call("new-session", name=runtime, runtime=runtime)
            calls[f"{ours.RAW}, {who}"] = lambda raw=raw: bare(raw)  # type: ignore[misc]

        def table(name: str, title: str, many: int, silence_s: float = 0.0) -> BenchTable:
            seconds = time_in_turns(
                {who: TimedCall(call, many) for who, call in calls.items()}, plan.of(10, 3), silence_s
            )
            roles: dict[str, Role] = {peer: "peer"}
            rows = [SampleRow(who, roles.get(who, "ours"), scale(kept, _US)) for who, kept in seconds.items()]
            return BenchTable(f"{runtime}-{name}", title, "us", peer, rows)

        return [
            table("eval", f"{runtime}: `{code}` to its answer, one after the other", plan.of(200, 60)),
            table("eval-after-silence", f"{runtime}: the same after 20 ms of silence", plan.of(20, 8), _SILENCE_S),
        ]

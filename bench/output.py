"""10 MB of stdout, live at the caller: in one write, and in lines of 100 bytes."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import ours, peers
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan

_BYTES = 10_000_000
_CODES = {
    "one write": f"import sys; sys.stdout.write('x' * {_BYTES - 1} + chr(10)); None",
    "lines of 100 bytes": f"for _ in range({_BYTES // 100}): print('x' * 99)",
}


def measure(plan: BenchPlan) -> list[BenchTable]:
    """One table a way of writing. A row whose text did not all come live says how much did."""
    with ours.broker(max_output_bytes=64 * 1024 * 1024) as broker, peers.kernel() as kernel:
        raw, client = broker.raw(), broker.client()
        raw.call("new-session", name="raw")
        client.new("library")

        def bare(code: str) -> int:
            raw.printed = 0
            raw.eval(code, "raw")
            return raw.printed

        def library(code: str) -> int:
            return len(client.eval(code, session="library").out)

        contenders: dict[str, Callable[[str], int]] = {
            ours.RAW: bare,
            ours.LIBRARY: library,
            peers.NAME: kernel.stream,
        }
        return [_table(how, code, contenders, plan.of(7, 2)) for how, code in _CODES.items()]


def _table(how: str, code: str, contenders: dict[str, Callable[[str], int]], rounds: int) -> BenchTable:
    speeds: dict[str, list[float]] = {who: [] for who in contenders}
    least = dict.fromkeys(contenders, _BYTES)
    for _ in range(rounds):
        for who, run in contenders.items():
            began = time.perf_counter()
            got = run(code)
            speeds[who].append(got / 1e6 / (time.perf_counter() - began))
            least[who] = min(least[who], got)
    rows = [
        SampleRow(
            who,
            "peer" if who == peers.NAME else "ours",
            speeds[who],
            "" if least[who] == _BYTES else f"as little as {100 * least[who] // _BYTES} % came live",
        )
        for who in contenders
    ]
    name = "output-" + how.replace(" ", "-")
    return BenchTable(name, f"10 MB of stdout in {how}", "MB/s", ours.RAW, rows, more_is_better=True)

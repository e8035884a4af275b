"""Memory of an idle session: worker, interpreter and its sandbox, shared pages in proportion.

The broker is a plain one, with the pool it has by default: its warm workers share pages with the session's.
"""

from __future__ import annotations

from bench import ours, peers, procs
from bench.stats import BenchTable, Check, SampleRow
from bench.turns import BenchPlan

ALONE, AMONG = "ours, the only session", "ours, one of 10 sessions"
_MANY = 10


def measure(plan: BenchPlan) -> list[BenchTable]:
    """One table."""
    with ours.broker() as broker, peers.kernel() as kernel:
        raw = broker.raw()
        kernel.eval("1+1")
        alone = _sessions(broker, raw, ["s0"])
        among = _sessions(broker, raw, [f"s{number}" for number in range(1, _MANY)])
        rows = [
            SampleRow(ALONE, "ours", alone),
            SampleRow(AMONG, "ours", among),
            SampleRow("ours, the broker itself (once)", "floor", [procs.pss_mb(broker.pid)]),
            SampleRow(peers.NAME, "peer", [procs.pss_mb(kernel.pid)]),
        ]
    for _ in range(plan.of(2, 0)):  # a kernel has nothing to share with the next one but libraries
        with peers.kernel() as kernel:
            kernel.eval("1+1")
            procs.settle()
            rows[-1].samples.append(procs.pss_mb(kernel.pid))
    table = BenchTable("memory", "PSS of an idle session after its first eval", "MB", ALONE, rows)
    table.checks.append(Check(ALONE, table.row(ALONE).p50, 10, at_most=True, unit="MB"))
    return [table]


def _sessions(broker: ours.BenchBroker, raw: ours.RawClient, names: list[str]) -> list[float]:
    """Open these, and measure each when all are at rest."""
    pids = []
    for name in names:
        raw.call("new-session", name=name)
        raw.eval("1+1", name)
        pids.append(int(raw.info(name)["pid"]))
    procs.settle()
    return [broker.session_mb(pid) for pid in pids]

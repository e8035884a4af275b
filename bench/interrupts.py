"""From the interrupt to the end of an eval that loops for ever."""

from __future__ import annotations

from bench import ours, peers, procs
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

_LOOP = "print('go', flush=True)\nwhile True: pass"
_MS = 1e3


def measure(plan: BenchPlan) -> list[BenchTable]:
    """One table."""
    with ours.broker() as broker, peers.kernel() as kernel:
        raw = broker.raw()
        raw.call("new-session", name="s")
        sent: list[str] = []

        def begin() -> None:
            sent.append(raw.send_and_wait_for_output(_LOOP, "s"))
            procs.settle(0.05)

        def stop() -> None:
            raw.send("interrupt", session="s")
            raw.finish(sent.pop())

        def begin_peer() -> None:
            sent.append(kernel.send_and_wait_for_output(_LOOP))
            procs.settle(0.05)

        def stop_peer() -> None:
            kernel.interrupt()
            kernel.finish(sent.pop())

        seconds = time_in_turns(
            {ours.RAW: TimedCall(stop, 5, before=begin), peers.NAME: TimedCall(stop_peer, 5, before=begin_peer)},
            plan.of(10, 2),
        )
    rows = [
        SampleRow(ours.RAW, "ours", scale(seconds[ours.RAW], _MS)),
        SampleRow(peers.NAME, "peer", scale(seconds[peers.NAME], _MS)),
    ]
    return [BenchTable("interrupt", "Interrupt of `while True: pass` to the eval's end", "ms", ours.RAW, rows)]

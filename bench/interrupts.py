"""From the interrupt to the end of an eval that loops for ever."""

from __future__ import annotations

from bench import ours, peers, procs
from bench.stats import Row, Table
from bench.turns import Plan, Turn, in_turns, scaled

_LOOP = "print('go', flush=True)\nwhile True: pass"
_MS = 1e3


def measure(plan: Plan) -> list[Table]:
    """One table."""
    with ours.broker() as broker, peers.kernel() as kernel:
        raw = broker.raw()
        raw.call("new-session", name="s")
        sent: list[str] = []

        def begin() -> None:
            sent.append(raw.begin(_LOOP, "s"))
            procs.settle(0.05)

        def stop() -> None:
            raw.send("interrupt", session="s")
            raw.finish(sent.pop())

        def begin_peer() -> None:
            sent.append(kernel.begin(_LOOP))
            procs.settle(0.05)

        def stop_peer() -> None:
            kernel.interrupt()
            kernel.finish(sent.pop())

        seconds = in_turns(
            {ours.RAW: Turn(stop, 5, before=begin), peers.NAME: Turn(stop_peer, 5, before=begin_peer)},
            plan.of(10, 2),
        )
    rows = [
        Row(ours.RAW, "ours", scaled(seconds[ours.RAW], _MS)),
        Row(peers.NAME, "peer", scaled(seconds[peers.NAME], _MS)),
    ]
    return [Table("interrupt", "Interrupt of `while True: pass` to the eval's end", "ms", ours.RAW, rows)]

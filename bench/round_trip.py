"""An eval of `1+1` and back: as fast as it goes, on one core, and after a silence, which is how agents call."""

from __future__ import annotations

import os

from bench import ours, peers, procs
from bench.floor import floor
from bench.stats import BenchTable, Check, Role, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

FLOOR = "floor (zmq.proxy echo)"
_ROLES: dict[str, Role] = {
    FLOOR: "floor",
    ours.RAW: "ours",
    ours.LIBRARY: "ours",
    peers.NAME: "peer",
    peers.PLAIN: "peer",
}
_SILENCE_S = 0.02
_US = 1e6


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Three tables with the same five rows."""
    with floor() as echo, ours.broker() as broker, peers.kernel() as kernel:
        raw, client = broker.raw(), broker.client()
        raw.call("new-session", name="raw")
        client.new("library")

        def library() -> None:
            assert client.eval("1+1", session="library").value == "2"

        def bare() -> None:
            assert raw.eval("1+1", "raw") == "2"

        def peer() -> None:
            assert kernel.eval("1+1") == "2"

        def peer_library() -> None:
            assert kernel.interactive("1+1") == "2"

        def table(name: str, title: str, many: int, few: int, silence_s: float = 0.0) -> BenchTable:
            turns = {
                FLOOR: TimedCall(echo.trip, many),
                ours.RAW: TimedCall(bare, many),
                ours.LIBRARY: TimedCall(library, many),
                peers.NAME: TimedCall(peer, few),
                peers.PLAIN: TimedCall(peer_library, few),
            }
            seconds = time_in_turns(turns, plan.of(10, 3), silence_s)
            rows = [SampleRow(who, _ROLES[who], scale(kept, _US)) for who, kept in seconds.items()]
            return BenchTable(name, title, "us", FLOOR, rows)

        many, few = plan.of(300, 150), plan.of(40, 20)
        tight = table("round-trip", "Round trip of `1+1`, one after the other", many, few)
        for who, peer_who in ((ours.RAW, peers.NAME), (ours.LIBRARY, peers.PLAIN)):  # like with like
            tight.checks += [
                Check(f"{who}, of the floor", tight.ratio(who, FLOOR), 1.9, at_most=True),
                Check(f"{peer_who}, of {who}", tight.ratio(peer_who, who), 12, at_most=False),
            ]
        with procs.on_one_core([*echo.pids, broker.pid, kernel.pid, os.getpid()]):
            pinned = table("round-trip-one-core", "The same with everything on one core", many, few)
        quiet = table(
            "round-trip-after-silence", "The same after 20 ms of silence", plan.of(30, 10), plan.of(15, 5), _SILENCE_S
        )
        return [tight, pinned, quiet]

"""Completion in a session that has seen a little work, beside a kernel's (IPython's completer, which may run jedi)."""

from __future__ import annotations

from bench import ours, peers
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

_SETUP = "import json, os.path, collections\nlookup = {f'key{n}': n for n in range(100)}\nlongname = 1"
_ASKED = {
    "a name": ("longn", "longname"),
    "an attribute": ("json.dum", "dumps"),
    "a dict key": ("lookup['key9", "key99"),
}
_US = 1e6


def measure(plan: BenchPlan) -> list[BenchTable]:
    """One table a kind of word."""
    with ours.broker() as broker, peers.kernel() as kernel:
        raw = broker.raw()
        raw.call("new-session", name="s")
        raw.eval(_SETUP, "s")
        kernel.eval(_SETUP)

        def table(what: str, code: str, expected: str) -> BenchTable:
            def bare() -> None:
                found = raw.call("complete", code=code, pos=len(code), session="s").completions or []
                assert any(expected in entry["text"] for entry in found)

            def peer() -> None:
                assert any(expected in text for text in kernel.complete(code))

            turns = {ours.RAW: TimedCall(bare, plan.of(50, 20)), peers.NAME: TimedCall(peer, plan.of(20, 5))}
            seconds = time_in_turns(turns, plan.of(10, 3))
            rows = [
                SampleRow(ours.RAW, "ours", scale(seconds[ours.RAW], _US)),
                SampleRow(peers.NAME, "peer", scale(seconds[peers.NAME], _US)),
            ]
            return BenchTable(f"completion-{what.split()[-1]}", f"Completion of {what}: `{code}`", "us", ours.RAW, rows)

        return [table(what, code, expected) for what, (code, expected) in _ASKED.items()]

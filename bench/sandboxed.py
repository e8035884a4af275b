"""Cost of the sandbox at a caller: two brokers that differ in nothing else, in turns."""

from __future__ import annotations

from contextlib import ExitStack

from bench import ours, procs
from bench.stats import BenchTable, Role, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

OFF, ON = "sandbox off", "sandbox on"
_ROLES: dict[str, Role] = {OFF: "floor", ON: "ours"}
_POOL = 4
_US, _MS = 1e6, 1e3


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Four tables: eval, reset, new session, memory. Raises RuntimeError on a machine that cannot sandbox."""
    with ExitStack() as stack:
        brokers = {who: stack.enter_context(ours.broker(_POOL, sandbox=who == ON)) for who in (OFF, ON)}
        raws = {who: broker.raw() for who, broker in brokers.items()}
        if [raw.is_sandboxed() for raw in raws.values()] != [False, True]:
            raise RuntimeError("this machine cannot sandbox sessions")
        for raw in raws.values():
            raw.call("new-session", name="s")

        def first(raw: ours.RawClient) -> None:
            assert raw.call("eval", **{"code": "1+1", "session": "new", "if-missing": "create"}).value == "2"

        def reset(raw: ours.RawClient) -> None:
            raw.call("reset", session="s")
            assert raw.eval("1+1", "s") == "2"

        def ready() -> None:
            for raw in raws.values():  # neither may still be starting a worker while the other is timed
                if any(entry["name"] == "new" for entry in raw.call("ls-sessions").sessions or ()):
                    raw.call("close", session="new")
                raw.wait_warm(_POOL)

        evals = {who: TimedCall(lambda raw=raw: raw.eval("1+1", "s"), plan.of(300, 100)) for who, raw in raws.items()}  # type: ignore[misc]
        resets = {who: TimedCall(lambda raw=raw: reset(raw), 3, before=ready) for who, raw in raws.items()}  # type: ignore[misc]
        firsts = {who: TimedCall(lambda raw=raw: first(raw), 3, before=ready) for who, raw in raws.items()}  # type: ignore[misc]
        rounds = plan.of(10, 3)
        return [
            _table("eval", "Round trip of `1+1`, sandbox off and on", "us", time_in_turns(evals, rounds), _US),
            _table("reset", "Reset to the first answer, from the warm pool", "ms", time_in_turns(resets, rounds), _MS),
            _table(
                "new", "New session to the first answer, from the warm pool", "ms", time_in_turns(firsts, rounds), _MS
            ),
            _table(
                "memory",
                "PSS of one of 10 idle sessions",
                "MB",
                {who: _memory(broker, raws[who]) for who, broker in brokers.items()},
                1,
            ),
        ]


def _table(name: str, title: str, unit: str, samples: dict[str, list[float]], factor: float) -> BenchTable:
    rows = [SampleRow(who, _ROLES[who], scale(kept, factor)) for who, kept in samples.items()]
    return BenchTable(f"sandboxed-{name}", title, unit, OFF, rows)


def _memory(broker: ours.BenchBroker, raw: ours.RawClient) -> list[float]:
    names = [f"m{number}" for number in range(10)]
    for name in names:
        raw.call("new-session", name=name)
        raw.eval("1+1", name)
    procs.settle()
    return [broker.session_mb(int(raw.info(name)["pid"])) for name in names]

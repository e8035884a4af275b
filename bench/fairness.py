"""Twenty agents with the same mixed load: does each get as much done as any other, also beside a hog?"""

from __future__ import annotations

import json
from collections.abc import Sequence

from bench import procs, shared
from bench.neighbours import start_neighbour
from bench.stats import BenchTable, Check, SampleRow
from bench.turns import BenchPlan

_AGENTS = 20
_LEAST_JAIN = 0.98
_TIMEOUT_S = 60.0
_ALONE, _HOG = "20 agents, nobody else", "20 agents beside a hog with 20 labels"


def jain(counts: Sequence[float]) -> float:
    """Jain's index: 1 when all have the same, 1/n when one has everything."""
    total = sum(counts)
    return total * total / (len(counts) * sum(count * count for count in counts)) if total else 0.0


def measure(plan: BenchPlan) -> list[BenchTable]:
    """One table; a sample is what one agent had done each second."""
    rounds, seconds = plan.of(3, 1), plan.of(4, 2)
    counts: dict[str, list[list[int]]] = {_ALONE: [], _HOG: []}
    with shared.broker(["limits.rate-limit-per-min=1000000"]) as broker, start_neighbour("hog", broker) as loud:
        agents = procs.start_module("agents", str(shared.CALM_UID), broker.zmq, str(_AGENTS))
        try:
            procs.read_line(agents)
            for _ in range(rounds):
                procs.send_line(agents, str(seconds))
                counts[_ALONE].append(json.loads(procs.read_line(agents, _TIMEOUT_S)))
                with loud(seconds + 1):
                    procs.send_line(agents, str(seconds))
                    counts[_HOG].append(json.loads(procs.read_line(agents, _TIMEOUT_S)))
        finally:
            procs.stop(agents)
    rows, checks = [], []
    for who, found in counts.items():
        rows.append(SampleRow(who, "ours", [count / seconds for each in found for count in each]))
        checks.append(Check(f"Jain's index, {who}", min(map(jain, found)), _LEAST_JAIN, False, ""))
    title = f"Evals a second of each of twenty agents ({shared.users()})"
    return [BenchTable("fairness", title, "evals/s", _ALONE, rows, more_is_better=True, checks=checks)]

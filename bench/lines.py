"""100 clients at once, each with a session of its own and always one eval under way: lines over TCP, and ZeroMQ."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import ExitStack

from bench import ours, procs
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan

ZMQ, LINES = "100 ZeroMQ clients (ipc)", "100 line clients (TCP)"
_CLIENTS, _PROCESSES = 100, 4
_MS = 1e-3


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Two tables: evals a second, and how long each took."""
    names = [f"s{number}" for number in range(_CLIENTS)]
    seconds = plan.of(20, 5) / 10
    rates: dict[str, list[float]] = {ZMQ: [], LINES: []}
    took: dict[str, list[float]] = {ZMQ: [], LINES: []}
    with ExitStack() as stack:
        broker = stack.enter_context(ours.broker(tcp=True))
        raw = broker.raw()
        for name in names:
            raw.call("new-session", name=name)
        assert broker.tcp is not None
        running: dict[str, list[subprocess.Popen[str]]] = {}
        for who, kind, target in ((ZMQ, "zmq", broker.endpoint), (LINES, "lines", broker.tcp)):
            running[who] = [
                procs.start_module("many", kind, target, *names[part::_PROCESSES]) for part in range(_PROCESSES)
            ]
            for process in running[who]:
                stack.callback(procs.stop, process)
                procs.read_line(process)
        for turn in range(-1, plan.of(6, 2)):  # the first round warms up
            for who, processes in running.items():
                began = time.perf_counter()
                for process in processes:
                    procs.send_line(process, str(seconds))
                answers = [micro for process in processes for micro in json.loads(procs.read_line(process))]
                if turn >= 0:
                    rates[who].append(len(answers) / (time.perf_counter() - began))
                    took[who] += [micro * _MS for micro in answers]
    fast = [SampleRow(who, "ours", samples) for who, samples in rates.items()]
    late = [SampleRow(who, "ours", samples) for who, samples in took.items()]
    return [
        BenchTable("lines-rate", "Evals a second of 100 clients, one under way in each", "evals/s", ZMQ, fast, True),
        BenchTable("lines-latency", "How long each of those evals took", "ms", ZMQ, late),
    ]

"""Evals a second through one broker, with 1, 8 and 64 callers that do not wait for one answer before they ask on."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench import ours, peers, procs
from bench.floor import floor
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan

_KERNELS = 8
_ECHOES = 4


@contextmanager
def loaders(orders: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Load processes, all of them ready and waiting for their first line."""
    running: list[subprocess.Popen[str]] = []
    try:
        for order in orders:
            running.append(procs.start_module("load", *order))
        for process in running:
            procs.read_line(process)
        yield running
    finally:
        for process in running:
            procs.stop(process)


def go(running: Sequence[subprocess.Popen[str]]) -> None:
    """Let them begin, or count."""
    for process in running:
        procs.send_line(process)


def rates(running: Sequence[subprocess.Popen[str]], windows: int, seconds: float) -> list[float]:
    """Answers a second, all processes together, in so many windows."""
    go(running)
    time.sleep(0.5)
    found = []
    began = _collect(running)[1]
    for _ in range(windows):
        time.sleep(seconds)
        count, ended = _collect(running)
        found.append(count / (ended - began))
        began = ended
    return found


def _collect(running: Sequence[subprocess.Popen[str]]) -> tuple[int, float]:
    go(running)
    counts = [int(procs.read_line(process)) for process in running]
    return sum(counts), time.perf_counter()


def measure(plan: BenchPlan) -> list[BenchTable]:
    """One table; each row is a load of its own, so these come one after the other."""
    windows, seconds = plan.of(5, 2), plan.of(20, 5) / 10
    rows = []
    for clients, sessions, window in ((1, 1, 16), (1, 8, 1), (8, 1, 8), (8, 4, 2), (64, 1, 4)):
        with ours.broker() as broker:
            orders = [
                ["ours", str(window), "0", broker.endpoint, *(f"c{client}s{number}" for number in range(sessions))]
                for client in range(clients)
            ]
            with loaders(orders) as running:
                found = rates(running, windows, seconds)
        rows.append(SampleRow(_name("ours", clients, sessions, window), "ours", found))
    for clients in (1, 8):
        with floor(_ECHOES) as echo, loaders([["floor", "16", "0", echo.endpoint, "000"]] * clients) as running:
            found = rates(running, windows, seconds)
        rows.append(SampleRow(f"floor: {_count(clients, 'client')}, {_ECHOES} echo workers", "floor", found))
    for kernels in (1, _KERNELS):
        with ExitStack() as stack:
            files = [stack.enter_context(peers.kernel()).connection_file for _ in range(kernels)]
            running = stack.enter_context(loaders([["ipykernel", "8", "0", file, "0"] for file in files]))
            found = rates(running, windows, seconds)
        who = f"ipykernel: {_count(kernels, 'kernel')}, a client each, 8 under way in each"
        rows.append(SampleRow(who, "peer", found))
    title = "Evals a second through one broker, small evals, pipelined"
    return [BenchTable("throughput", title, "evals/s", rows[0].who, rows, more_is_better=True)]


def _name(who: str, clients: int, sessions: int, window: int) -> str:
    return f"{who}: {_count(clients, 'client')} with {_count(sessions, 'session')}, {window} under way in each"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

"""A clone of a session that holds much, up to its first answer, beside dill that writes a file for another process."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from bench import ours, procs
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

OURS = "ours, clone and an eval"
DILL, FRESH = (
    "dill alone, to a process that waits with dill imported",
    "dill alone, to a process that is started for it",
)
_KINDS = {
    "bytes": "import random; data = random.Random(1).randbytes(1_000_000) * {mb}",
    "a numpy array": "import numpy; data = numpy.arange({mb}_000_000 // 8)",
}
_MUCH, _FREE_GB = 1000, 6.0
_SANDBOX = {"memory-bytes": 4 << 30, "file-bytes": 2 << 30}  # by default a session may hold 1 GiB, files too
_MS = 1e3


def measure(plan: BenchPlan) -> list[BenchTable]:
    """Return a table for each size and kind; 1000 MB only in a full run, on a machine with so much memory to spare."""
    sizes = [1, 100] + ([_MUCH] if not plan.quick and _free_gb() > _FREE_GB else [])
    kinds = [kind for kind in _KINDS if kind == "bytes" or find_spec("numpy")]
    return [_table(plan, kind, mb) for mb in sizes for kind in kinds]


def _table(plan: BenchPlan, kind: str, mb: int) -> BenchTable:
    code = _KINDS[kind].format(mb=mb)
    with ExitStack() as stack:
        broker = stack.enter_context(ours.broker(sandbox_limits=_SANDBOX))
        raw = broker.raw()
        raw.call("new-session", name="s")
        raw.eval(code, "s")
        length = str(raw.eval("len(data)", "s"))
        file = stack.enter_context(procs.temporary_directory()) / "dump"
        holder = procs.start_module("dilled", "hold", str(file))
        stack.callback(procs.stop, holder)
        procs.send_line(holder, code)
        procs.read_line(holder)
        loaders: list[subprocess.Popen[str]] = []
        clones: list[str] = []

        def end() -> None:
            """Both contenders' last copies, so that neither is timed with more memory in use."""
            while loaders:
                procs.stop(loaders.pop())
            while clones:
                raw.call("close", session=clones.pop())
            raw.wait_warm(2)

        def start() -> None:
            loaders.append(procs.start_module("dilled", "load", str(file)))
            procs.read_line(loaders[-1])

        def ready() -> None:
            end()
            start()

        def clone() -> None:
            clones.append("t")
            raw.call("clone", session="s", name="t")
            assert raw.eval("len(data)", "t") == length

        def dill() -> None:
            procs.send_line(holder)
            procs.read_line(holder)
            procs.send_line(loaders[0])
            assert procs.read_line(loaders[0]) == length

        def fresh() -> None:
            start()
            dill()

        stack.callback(end)
        each, rounds = (1, 4) if mb == _MUCH else (2, plan.of(6, 2))
        turns = {
            OURS: TimedCall(clone, each, end),
            DILL: TimedCall(dill, each, ready),
            FRESH: TimedCall(fresh, each, end),
        }
        seconds = time_in_turns(turns, rounds)
    rows = [SampleRow(who, "ours" if who == OURS else "peer", scale(kept, _MS)) for who, kept in seconds.items()]
    name = f"clone-{mb}-{kind.rpartition(' ')[2]}"
    return BenchTable(name, f"Clone of a session with {mb} MB in {kind}, to its first answer", "ms", OURS, rows)


def _free_gb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024 / 1e9

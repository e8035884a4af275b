"""Wall time of a command, from the start of its process to its end, with a broker that runs already."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench import ours
from bench.stats import BenchTable, SampleRow
from bench.turns import BenchPlan, TimedCall, scale, time_in_turns

_PYTHON, _EVAL = "python -c pass", "replctl eval 1+1"
_MS = 1e3
_TIMEOUT_S = 20.0


def measure(plan: BenchPlan) -> list[BenchTable]:
    """One table."""
    command = Path(sys.executable).with_name("replctl")
    replctl = [str(command)] if command.exists() else [sys.executable, "-m", "replctl"]
    with ours.broker() as broker:
        env = {
            **os.environ,
            "REPLCTL_ENDPOINT": broker.endpoint,
            "REPLCTL_STATE_DIR": str(broker.state),
            "XDG_CONFIG_HOME": str(broker.state),
        }

        def run(*argv: str) -> str:
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
            return done.stdout.strip()

        def evaluate() -> None:
            assert run(*replctl, "eval", "1+1") == "2"

        turns = {
            _PYTHON: TimedCall(lambda: run(sys.executable, "-c", "pass"), 5),
            "python -c 'import click, msgspec, zmq'": TimedCall(
                lambda: run(sys.executable, "-c", "import click, msgspec, zmq"), 5
            ),
            _EVAL: TimedCall(evaluate, 5),
        }
        seconds = time_in_turns(turns, plan.of(8, 2), warm_up=1)
    rows = [SampleRow(who, "ours" if who == _EVAL else "floor", scale(kept, _MS)) for who, kept in seconds.items()]
    return [BenchTable("command-line", "Wall time of one command", "ms", _PYTHON, rows)]

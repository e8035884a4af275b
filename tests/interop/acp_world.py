"""A broker and an environment for one client of other people."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from kit import BrokerProcess, processes_with, wait_until


@dataclass
class World:
    """Surroundings of a client. `agent` is the command that it starts."""

    directory: Path
    environ: dict[str, str]
    broker: BrokerProcess
    agent: list[str]


@contextmanager
def world() -> Iterator[World]:
    """One, with a home of its own; at its end no process of it may be left."""
    directory = Path(tempfile.mkdtemp(prefix="rpi-", dir="/tmp"))
    (directory / "home").mkdir()
    (directory / "work").mkdir()
    broker = BrokerProcess(directory, "limits.rate-limit-per-min=0")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REPLCTL_")}
    environ = kept | {
        "HOME": str(directory / "home"),
        "REPLCTL_STATE_DIR": str(directory),
        "REPLCTL_ENDPOINT": broker.endpoint,
    }
    try:
        yield World(directory, environ, broker, [sys.executable, "-m", "replctl", "acp"])
    finally:
        assert broker.stop() == 0
        wait_until(lambda: not processes_with(str(directory)), "all processes have ended", 30)
        shutil.rmtree(directory)

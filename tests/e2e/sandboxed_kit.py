"""Brokers whose sessions are sandboxed, as the tests of checkpoints and branches need them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit import BrokerProcess, wait_until


@contextmanager
def sandboxed_broker(*settings: str, **more: Any) -> Iterator[BrokerProcess]:
    """A broker with sandboxed sessions and a directory of its own, which goes without a trace."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))  # short: socket paths are bounded
    broker = BrokerProcess(
        directory,
        "limits.rate-limit-per-min=0",
        "limits.interrupt-grace-ms=300",
        *settings,
        warm=1,
        sandbox=True,
        **more,
    )
    yield broker
    family = broker.process_tree()
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    wait_until(lambda: not [pid for pid in family if Path(f"/proc/{pid}").exists()], "all processes have ended")
    shutil.rmtree(directory)

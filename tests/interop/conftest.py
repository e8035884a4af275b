"""Clients nobody here wrote. Not part of the usual tests: `make test-interop`, which installs them on first use.

`test_walk.py` installs anew each time: the command, and a package by it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).parent))

from kit import BrokerProcess
from peers import Peers, installed

collect_ignore_glob = [] if os.environ.get("REPLCTL_INTEROP") else ["test_*.py"]


@pytest.fixture(scope="session")
def peers() -> Peers:
    return installed()


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    broker = BrokerProcess(Path(tempfile.mkdtemp(prefix="ri-", dir="/tmp")), "limits.rate-limit-per-min=0")
    yield broker
    assert broker.stop() == 0
    shutil.rmtree(broker.directory)

"""Fixtures: a broker of each test's own, and terminals that are closed at the end."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).parent))

from kit import BrokerProcess
from top_kit import Terminal


@pytest.fixture
def start() -> Iterator[Callable[..., BrokerProcess]]:
    """Start a broker with settings of its own."""
    brokers: list[BrokerProcess] = []

    def begin(*settings: str, **more: object) -> BrokerProcess:
        directory = Path(tempfile.mkdtemp(prefix="rpt-", dir="/tmp"))  # short: socket paths are bounded
        brokers.append(BrokerProcess(directory, *settings, **more))  # type: ignore[arg-type]
        return brokers[-1]

    yield begin
    for broker in brokers:
        broker.stop()
        shutil.rmtree(broker.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One for the tests of a module that change nothing in it but their own sessions."""
    directory = Path(tempfile.mkdtemp(prefix="rpt-", dir="/tmp"))
    broker = BrokerProcess(directory, "limits.rate-limit-per-min=0", "limits.interrupt-grace-ms=500")
    yield broker
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(directory)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Run commands in terminals."""
    terminals: list[Terminal] = []

    def begin(broker: BrokerProcess, *args: str, **variables: str) -> Terminal:
        terminals.append(Terminal(broker, *args, **variables))
        return terminals[-1]

    yield begin
    for each in terminals:
        each.end()

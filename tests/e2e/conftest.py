"""Fixtures: one long-lived broker for all tests that do not need one of their own, and a factory for those."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from kit import BrokerProcess, Wire, close_sessions


def _directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))  # short: socket paths are bounded


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """The shared broker; it has to survive every fault of these tests."""
    directory = _directory()
    broker = BrokerProcess(directory, "limits.rate-limit-per-min=0", "limits.interrupt-grace-ms=500")
    yield broker
    assert broker.process.poll() is None, broker.log_text()
    family = broker.process_tree()
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def lines_broker() -> Iterator[BrokerProcess]:
    """A shared broker with line listeners."""
    broker = BrokerProcess(
        _directory(), "limits.rate-limit-per-min=0", "broker.tcp=127.0.0.1:0", "broker.unix=/DIRECTORY/run/lines.sock"
    )
    yield broker
    assert broker.process.poll() is None, broker.log_text()
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(broker.directory)


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    """A connection to the shared broker; its sessions are closed at the end."""
    with broker.wire() as wire:
        yield wire
    with broker.wire() as tidy:
        close_sessions(tidy)


@pytest.fixture
def start() -> Iterator[Callable[..., BrokerProcess]]:
    """Start a broker with settings of its own: `start("limits.max-sessions=2")`."""
    brokers: list[BrokerProcess] = []

    def begin(*settings: str, **more: object) -> BrokerProcess:
        brokers.append(BrokerProcess(_directory(), *settings, **more))  # type: ignore[arg-type]
        return brokers[-1]

    yield begin
    for broker in brokers:
        broker.stop()
        broker.end_leftovers()
        shutil.rmtree(broker.directory, ignore_errors=True)

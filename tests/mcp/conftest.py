"""Shared by the tests of the tools and the MCP server: brokers, real and scripted, and the SDK's own client."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))  # pytest imports tests by file, not by directory
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
sys.path.insert(0, str(Path(__file__).parent))

from mcp import Client
from mcp.client.stdio import stdio_client

from kit import TIMEOUT_S, BrokerProcess
from mcp_kit import Connect, server_parameters
from replctl import Client as ReplClient
from stub_broker import Script, StubBroker


def _directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="rm-", dir="/tmp"))  # short: socket paths are bounded


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """A long-lived one; each test uses sessions of its own names."""
    settings = (
        "limits.rate-limit-per-min=0",
        "limits.interrupt-grace-ms=500",
        'session.load-paths=["/DIRECTORY/files"]',
    )
    broker = BrokerProcess(_directory(), *settings)
    yield broker
    assert broker.process.poll() is None, broker.log_text()
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(broker.directory)


@pytest.fixture
def own_broker() -> Iterator[BrokerProcess]:
    """One for a test that kills it; what was started in its place is ended too."""
    broker = BrokerProcess(_directory(), "limits.rate-limit-per-min=0")
    yield broker
    broker.stop()
    with ReplClient(broker.endpoint, start=False) as client:
        client.shutdown()
        assert client.wait_for_shutdown(TIMEOUT_S)
    shutil.rmtree(broker.directory, ignore_errors=True)


@pytest.fixture
def stub() -> Iterator[Callable[[Script], StubBroker]]:
    """Start a stub broker with a script."""
    directory = _directory()
    stubs: list[StubBroker] = []

    def start(script: Script) -> StubBroker:
        stubs.append(StubBroker(f"ipc://{directory}/b{len(stubs)}.sock", script))
        return stubs[-1]

    yield start
    for each in stubs:
        each.stop()
    shutil.rmtree(directory)


@pytest.fixture
def connect(broker: BrokerProcess) -> Connect:
    """Open a client of a server process of its own: `connect("--agent", "ada", mode="legacy")`."""

    @asynccontextmanager
    async def open(*args: str, mode: str = "auto", of: BrokerProcess = broker) -> AsyncIterator[Client]:
        async with Client(stdio_client(server_parameters(of, *args)), mode=mode) as client:
            yield client

    return open

"""Fixtures: one broker for all, one agent for tests that leave it as it was, and a factory for the others."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).parent))

from acp_kit import Agent, Start, environ
from kit import BrokerProcess


@pytest.fixture(scope="session")
def acp_broker() -> Iterator[BrokerProcess]:
    """A broker that outlives every agent; at its end it must have met no defect."""
    directory = Path(tempfile.mkdtemp(prefix="rpa-", dir="/tmp"))  # short: socket paths are bounded
    broker = BrokerProcess(directory, "limits.rate-limit-per-min=0", "limits.interrupt-grace-ms=500")
    yield broker
    assert broker.process.poll() is None, broker.log_text()
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(directory)


@pytest.fixture
def start(acp_broker: BrokerProcess, tmp_path: Path) -> Iterator[Start]:
    """Start an agent; all of one test share a state directory, as restarts do."""
    agents: list[Agent] = []

    def begin(*args: str, **variables: str) -> Agent:
        agents.append(Agent(environ(tmp_path, acp_broker.endpoint) | variables, *args))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.stop()


@pytest.fixture(scope="session")
def shared(acp_broker: BrokerProcess) -> Iterator[Agent]:
    """An agent that lives through many tests and must end well."""
    directory = Path(tempfile.mkdtemp(prefix="rpa-", dir="/tmp"))
    agent = Agent(environ(directory, acp_broker.endpoint), "--permission-timeout", "20s")
    agent.start()
    yield agent
    assert agent.end() == 0
    assert "internal error" not in agent.stderr_text
    shutil.rmtree(directory)


@pytest.fixture
def agent(shared: Agent) -> Iterator[Agent]:
    """The shared agent, with nothing left over from another test."""
    shared.on_permission = None
    yield shared
    assert shared.process.poll() is None
    assert shared.call("initialize", protocolVersion=1)["result"]["protocolVersion"] == 1


@pytest.fixture
def session(agent: Agent) -> Iterator[str]:
    """A session of the shared agent, closed afterwards."""
    session = agent.new()
    yield session
    agent.call("session/close", sessionId=session)

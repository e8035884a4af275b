"""Fixtures that need a sandbox. Without one they skip loudly; where one is required, they fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).parent))

from attack_targets import USERS, begin, end
from checkpoint_kit import CheckpointedSession
from kit import BrokerProcess, Wire, close_sessions
from replwire.policy import Policy
from replworker.sandbox.machine import Machine, detect_machine
from replworker.sandbox.probe import probe
from replworker.sandbox.report import SandboxReport
from sandbox_kit import SandboxedPython, has_exited


def required() -> bool:
    """Return whether a machine that cannot sandbox fails the run."""
    return any(os.environ.get(name) for name in ("REPLCTL_REQUIRE_SANDBOX", "CI"))


@pytest.fixture(scope="session")
def machine() -> Machine:
    return detect_machine()


@pytest.fixture(scope="session")
def report(machine: Machine) -> SandboxReport:
    """Return the layers that hold here; at least all that are required."""
    found = probe(Policy(), machine, sys.executable, {"PATH": "/usr/bin:/bin"})
    if not found.ok:
        _without(f"NO SANDBOX HERE, its tests prove nothing: {found.text()}")
    return found


@pytest.fixture(scope="module", params=USERS)
def who(request: pytest.FixtureRequest, report: SandboxReport) -> str:
    """The kind of user that the broker runs as."""
    assert report.ok
    return str(request.param)


@pytest.fixture(scope="module")
def broker(who: str) -> Iterator[BrokerProcess]:
    """One with the usual settings."""
    broker = begin(who)
    yield broker
    end(broker)


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    """A client, whose sessions go with the test."""
    with broker.wire() as wire:
        yield wire
        close_sessions(wire)


@pytest.fixture(scope="session")
def grouped(machine: Machine) -> None:
    """Control groups for memory, processes and processor."""
    if set(machine.cgroups.directories) != {"memory", "pids", "cpu"}:
        _without(f"NO CONTROL GROUPS HERE, so nothing bounds a session's sum: {machine.cgroups.problem}")


@pytest.fixture(autouse=True)
def _groups_where_needed(request: pytest.FixtureRequest) -> None:
    """Skip tests of control groups where there are none."""
    case = getattr(request.node, "callspec", None)
    if case is not None and any(getattr(value, "group", False) for value in case.params.values()):
        request.getfixturevalue("grouped")


def _without(why: str) -> None:
    pytest.fail(why) if required() else pytest.skip(why)


@pytest.fixture
def live(machine: Machine, report: SandboxReport) -> Iterator[Callable[..., SandboxedPython]]:
    """Start sandboxed pythons (`live(policy)`), and end them with the test."""
    del report
    started: list[SandboxedPython] = []

    def start(policy: Policy | None = None, *, assigned: bool = True, **options: str) -> SandboxedPython:
        session = SandboxedPython(policy or Policy(), machine, **options)
        started.append(session)
        if assigned:
            session.assign()
        return session

    yield start
    for session in started:
        session.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A directory with something in it."""
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "data.txt").write_text("forty-two")
    return directory


@pytest.fixture
def open_session(machine: Machine, report: SandboxReport) -> Iterator[Callable[..., CheckpointedSession]]:
    """Start sessions (`open_session(checkpoints, ...)`), and end them with the test, leaving nothing."""
    del report
    sessions: list[CheckpointedSession] = []

    def start(checkpoints: str = "manual", **more: object) -> CheckpointedSession:
        sessions.append(CheckpointedSession(machine, checkpoints, **more))  # type: ignore[arg-type]
        return sessions[-1]

    yield start
    for session in sessions:
        inside = session.inside()
        session.close()
        assert all(has_exited(pid) for pid in inside)

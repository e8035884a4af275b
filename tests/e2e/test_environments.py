"""Python environments of sessions, made for the test, and packages installed from a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import BrokerProcess, Wire
from package_index import PackageIndex


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A directory with a `.venv`."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-project-", dir="/tmp"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory / ".venv")], check=True, timeout=60)
    yield directory
    shutil.rmtree(directory)


def test_a_session_moves_to_an_environment_and_stays_there_across_resets(wire: Wire, project: Path) -> None:
    before = wire.run("x = 1")["epoch"]
    moved = wire.ask("env", session="s", action="activate", path=str(project))
    assert moved.status == ["done"]
    assert (moved["epoch"], moved["state"]) == (before + 1, "lost")
    assert moved["executable"] == str(project / ".venv/bin/python")
    prefix = "import sys; sys.prefix"
    assert wire.run(prefix).value == repr(str(project / ".venv"))
    assert wire.run("import os; os.environ['VIRTUAL_ENV']").value == repr(str(project / ".venv"))
    wire.ask("reset", session="s")
    assert wire.run(prefix).value == repr(str(project / ".venv"))
    assert wire.ask("info", session="s")["info"]["environment"] == str(project)
    back = wire.ask("env", session="s", action="deactivate")
    assert "environment" not in back.last
    assert wire.run(prefix).value != repr(str(project / ".venv"))


@pytest.mark.parametrize("path", ["/no/such/place", "/etc", "/etc/passwd", "/bin/true"])
def test_an_environment_that_cannot_be_used_changes_nothing(wire: Wire, path: str) -> None:
    wire.run("x = 1")
    refused = wire.ask("env", session="s", action="activate", path=path)
    assert refused.status == ["done", "error", "environment-failed"]
    assert refused["cause"]
    assert wire.run("x").value == "1"
    assert wire.ask("new-session", name="t", runtime=path).status == ["done", "error", "environment-failed"]
    assert [each["name"] for each in wire.ask("ls-sessions")["sessions"]] == ["s"]


def test_packages_are_installed_for_a_session_in_any_environment(
    start: Callable[..., BrokerProcess], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = PackageIndex()
    index.add("thing", "1.0", {"thing.py": "answer = 42"})
    ((name, wheel),) = index.files["thing"].items()
    (tmp_path / name).write_bytes(wheel)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    with start().wire() as wire:
        for session, runtime in (("s", str(project / ".venv")), ("t", "@mine")):
            wire.ask("new-session", name=session, runtime=runtime, cwd=str(tmp_path))
            added = wire.ask("env", session=session, action="add", packages=["thing"])
            assert added.status == ["done"], added.messages
            assert "importable now: thing 1.0" in added.out
            assert "thing==1.0" in added.err
            assert wire.run("import thing; thing.answer", session=session).value == "42"
        assert "thing" in wire.ask("env", session="s", action="status").out
        assert wire.ask("env", session="s", action="rm", packages=["thing"]).status == ["done"]
        assert wire.ask("env", session="s", action="instantiate").status == ["done", "error"]
        assert not list((project / ".venv").rglob("thing*"))
        wire.ask("env", session="t", action="deactivate")
        assert "ModuleNotFoundError" in wire.run("import thing", session="t")["err"]


def test_tests_of_a_project_run_in_its_environment(wire: Wire, project: Path) -> None:
    (project / "test_it.py").write_text("import unittest\nclass T(unittest.TestCase):\n    def test_a(self): pass\n")
    wire.ask("new-session", name="s", runtime=str(project), cwd=str(project))
    answer = wire.ask("env", session="s", action="test")
    assert answer.status == ["done"], answer.messages
    assert "OK" in answer.err


def test_a_named_environment_is_made_when_it_is_new_and_kept(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        first = wire.ask("new-session", name="a", runtime="@mine")
        assert first["created"] is True, first.messages
        assert wire.run("import sys; sys.prefix", session="a").value == repr(str(broker.directory / "envs/mine"))
        assert wire.ask("new-session", name="b", runtime="@mine")["created"] is True
        assert wire.ask("new-session", name="c", runtime="@../x").status == ["done", "error", "invalid-request"]


def test_a_worker_in_an_environment_is_kept_warm_while_a_session_has_it(wire: Wire, project: Path) -> None:
    wire.ask("new-session", name="s", runtime=str(project))
    assert wire.ask("stats")["stats"]["workers"]["assigned"] == 1
    for _ in range(3):
        assert wire.ask("reset", session="s").status == ["done"]
        assert wire.run("6*7").value == "42"


def test_new_takes_the_environment_of_its_directory_and_says_so(
    start: Callable[..., BrokerProcess], project: Path
) -> None:
    broker = start()
    command = [sys.executable, "-m", "replctl", "new", "work", "--endpoint", broker.endpoint]
    done = subprocess.run(command, cwd=project, env=broker.environ, capture_output=True, timeout=30, check=True)
    assert str(project / ".venv") in done.stderr.decode()
    with broker.wire() as wire:
        assert wire.run("import sys; sys.prefix", session="work").value == repr(str(project / ".venv"))


def test_named_environments_have_a_bound_and_room_comes_back(start: Callable[..., BrokerProcess]) -> None:
    broker = start("limits.max-identity-environments=1", "limits.max-environments=1")
    with broker.wire() as wire:
        assert wire.ask("new-session", name="a", runtime="@one")["created"] is True
        for asked in (
            wire.ask("new-session", name="b", runtime="@two"),
            wire.run("1", session="b", runtime="@two"),
            wire.ask("env", session="a", action="activate", path="@two"),
        ):
            assert asked.status == ["done", "error", "environment-limit-reached"], asked.messages
            assert (asked["limit"], asked["limit-value"]) == ("max-identity-environments", 1)
        assert wire.ask("new-session", name="c", runtime="@one")["created"] is True
        assert "two" not in os.listdir(broker.directory / "envs")
        for name in ("a", "c"):
            wire.ask("close", session=name)
        shutil.rmtree(broker.directory / "envs/one")
        assert wire.ask("new-session", name="b", runtime="@two")["created"] is True


def test_anothers_environment_is_refused_and_ones_own_is_had_by_either_name(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start()
    with broker.wire() as wire:
        refused = wire.ask("new-session", name="a", runtime="@somebody/mine")
        assert refused.status == ["done", "error", "forbidden"]
        assert wire.ask("new-session", name="a", runtime=f"@uid:{os.getuid()}/mine")["created"] is True
        assert wire.ask("env", session="a", action="show")["environment"] == "@mine"

"""The default session of each project, by the installed command and over MCP, and what is said of where it works."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import BrokerProcess
from replctl import Client
from replctl.tools import toolset

HERE = "import os; print(os.getcwd())"


def run(broker: BrokerProcess, directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A command that is given in a directory."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "replctl", *args, "--endpoint", broker.endpoint, "--no-start"],
        cwd=directory,
        env=broker.environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def projects(start: Callable[..., BrokerProcess], tmp_path: Path) -> tuple[BrokerProcess, Path, Path]:
    """Two projects, one of which has a directory below."""
    for name, marker in (("a", "pyproject.toml"), ("b", "package.json")):
        (tmp_path / name / "src").mkdir(parents=True)
        (tmp_path / name / marker).touch()
    return start(), tmp_path / "a", tmp_path / "b"


def test_two_projects_never_meet_by_default_and_directories_of_one_do(
    projects: tuple[BrokerProcess, Path, Path],
) -> None:
    broker, a, b = projects
    opened = run(broker, a / "src", "eval", f"x = 'a'; {HERE}")
    assert (opened.stdout, opened.stderr) == (f"{a}\n", f"replctl: new session 'default' in {a}\n")
    assert run(broker, b, "eval", "-s", "default", f"x = 'b'; {HERE}").stdout == f"{b}\n"
    for directory, value in ((a, "'a'\n"), (a / "src", "'a'\n"), (b, "'b'\n"), (b / "src", "'b'\n")):
        again = run(broker, directory, "eval", "x")
        assert (again.stdout, again.stderr) == (value, "")
    listed = run(broker, a, "ls").stdout.splitlines()[1:]
    assert [(line.split()[0], line.split()[-1]) for line in listed] == [("default", str(a)), ("default", str(b))]
    run(broker, a, "close", "default")
    assert run(broker, b, "eval", "x").stdout == "'b'\n"


def test_a_directory_without_a_project_is_one_by_itself(
    projects: tuple[BrokerProcess, Path, Path], tmp_path: Path
) -> None:
    broker, _, _ = projects
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert run(broker, tmp_path / name, "eval", HERE).stdout == f"{tmp_path / name}\n"


def test_a_named_session_is_the_same_everywhere_and_says_where_it_works(
    projects: tuple[BrokerProcess, Path, Path],
) -> None:
    broker, a, b = projects
    run(broker, a, "eval", "-s", "work", "x = 1")
    there, elsewhere = run(broker, a / "src", "eval", "-s", "work", "x"), run(broker, b, "eval", "-s", "work", "x")
    assert (there.stdout, there.stderr) == ("1\n", "")
    assert (elsewhere.stdout, elsewhere.stderr) == ("1\n", f"replctl: session work works in {a}, not in {b}\n")


def test_a_program_and_tools_meet_in_the_project_and_hear_of_it_once(
    projects: tuple[BrokerProcess, Path, Path],
) -> None:
    broker, a, b = projects
    run(broker, a, "eval", "x = 'a'")
    with Client(broker.endpoint, start=False, directory=str(a / "src")) as client:
        first, second = client.eval("x"), client.eval("x")
        assert [(each.value, each.session, each.cwd) for each in (first, second)] == [
            ("'a'", "default", str(a)),
            ("'a'", "default", None),
        ]
        with toolset("default", client=client) as tools:
            assert f"session default in {a}" not in tools.call("eval", {"code": "x"}).text
    with Client(broker.endpoint, start=False, directory=str(b)) as other, toolset("default", client=other) as tools:
        assert f"session default in {b}]" in tools.call("eval", {"code": "1"}).text
        assert tools.call("eval", {"code": "1"}).text == "1"
    with Client(broker.endpoint, start=False, agent="far", directory=None) as far:
        assert far.eval("'x' in globals()").value == "False"

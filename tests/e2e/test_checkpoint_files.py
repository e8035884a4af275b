"""Checkpoints that keep the files of a session's directory: rollback, crash, diff, and sessions that spoil their own."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import TIMEOUT_S, BrokerProcess, CollectedReplies, Wire, close_sessions
from replctl.tools import toolset
from sandboxed_kit import sandboxed_broker


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """A broker with sandboxed sessions whose checkpoints keep files."""
    with sandboxed_broker("session.checkpoint-files=true") as broker:
        yield broker


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory of a session."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-project-", dir="/tmp"))
    (directory / "a.txt").write_text("one\n")
    (directory / "sub").mkdir()
    (directory / "sub" / "b").write_text("b")
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def wire(own_broker: BrokerProcess, project: Path) -> Iterator[Wire]:
    with own_broker.wire() as wire:
        wire.ask("new-session", name="s", cwd=str(project))
        yield wire
        close_sessions(wire)


def checkpoint(wire: Wire, name: str = "clean") -> CollectedReplies:
    taken = wire.ask("checkpoint", session="s", name=name)
    assert taken.status == ["done"], taken["err"]
    return taken


def files(directory: Path) -> dict[str, str]:
    """The directory's files, without the placeholders of protected names."""
    return {path.relative_to(directory).as_posix(): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_a_rollback_brings_back_the_files_with_the_variables(wire: Wire, project: Path) -> None:
    wire.run("x = 1")
    checkpoint(wire)
    wire.run(
        "import os, shutil; x = 2; open('a.txt', 'a').write('two\\n'); open('new', 'w').write('n')\n"
        "shutil.rmtree('sub'); os.makedirs('made/deep'); open('made/deep/c', 'w').close()"
    )
    back = wire.ask("rollback", session="s", to="clean")
    assert (back.status, back["state"], back.get("not-restored")) == (["done"], "rolled-back", None)
    assert files(project) == {"a.txt": "one\n", "sub/b": "b"}
    assert not (project / "made").exists()
    assert wire.run("x, open('a.txt').read()").value == "(1, 'one\\n')"


def test_what_was_changed_is_shown_against_each_checkpoint(wire: Wire) -> None:
    number = checkpoint(wire)["checkpoint"]
    wire.run("open('a.txt', 'w').write('two\\n')")
    wire.run("open('new', 'wb').write(b'\\0')")
    shown = wire.ask("diff", session="s", checkpoint="clean")
    assert shown["checkpoint"] == number
    assert shown["file-changes"] == [{"path": "a.txt", "change": "modified"}, {"path": "new", "change": "added"}]
    assert "-one\n+two\n" in shown["patch"]
    assert wire.ask("diff", session="s", checkpoint=99).status[-1] == "checkpoint-not-found"
    running = wire.send("eval", code="input()", session="s")
    wire.until(running, "need-input")
    assert wire.ask("diff", session="s", checkpoint="clean").status[-1] == "busy"


def test_a_crash_leaves_the_files_and_a_rollback_brings_them_back(wire: Wire, project: Path) -> None:
    wire.run("x = 1")
    checkpoint(wire)
    crashed = wire.run("open('a.txt', 'w').write('worth keeping'); import os; os.abort()")
    assert crashed["state"] == "rolled-back"
    assert any("files stay as the interpreter left them" in each for each in crashed["not-restored"])
    assert files(project)["a.txt"] == "worth keeping"
    back = wire.ask("rollback", session="s", to=crashed["checkpoint"])
    assert not [each for each in back.get("not-restored") or [] if "files" in each]
    assert files(project)["a.txt"] == "one\n"


def test_one_goes_back_and_forth_between_lines(wire: Wire, project: Path) -> None:
    numbers = []
    for text in ("A", "B", "C"):
        wire.run(f"x = {text!r}; open('a.txt', 'w').write(x); open({text!r}, 'w').close()")
        numbers.append(checkpoint(wire, text)["checkpoint"])
    for name in ("A", "C", "B", "C", "A"):
        assert wire.ask("rollback", session="s", to=name).status == ["done"]
        assert wire.run("x, open('a.txt').read()").value == f"({name!r}, {name!r})"
        assert sorted(each for each in files(project) if len(each) == 1) == list("ABC"[: "ABC".index(name) + 1])


def test_what_could_not_be_kept_is_said_at_the_checkpoint_and_at_the_rollback(wire: Wire) -> None:
    wire.run("import os; os.mkfifo('pipe')")
    note = "files: sockets, pipes and devices are not kept: pipe"
    assert note in checkpoint(wire)["not-restored"]
    wire.run("os.unlink('pipe')")
    assert note in wire.ask("rollback", session="s", to="clean")["not-restored"]


def test_a_session_without_them_says_so(wire: Wire, project: Path) -> None:
    wire.ask("new-session", name="plain", cwd=str(project), checkpoint_files=False)
    wire.run("open('a.txt', 'w').write('two')", session="plain")
    assert wire.ask("diff", session="plain").status == ["done", "error", "not-supported"]
    assert wire.ask("rollback", session="plain", to=1).status == ["done"]
    assert files(project)["a.txt"] == "two"
    reused = wire.ask("new-session", name="plain", checkpoint_files=True, if_exists="reuse")
    assert "`checkpoint-files`" in reused["notice"]


def test_a_branch_shares_the_directory_and_keeps_no_files(wire: Wire) -> None:
    wire.run("x = 1")
    branched = wire.ask("branch", session="s", name="side")
    assert branched.status == ["done"]
    assert any("only its source brings back files" in each for each in branched["not-restored"])
    refused = wire.ask("diff", session="side")
    assert refused.status == ["done", "error", "not-supported"]
    assert "a branch keeps no files" in refused["err"]
    wire.run("open('a.txt', 'w').write('two')", session="side")
    checkpoint(wire)
    assert wire.ask("diff", session="s", checkpoint="clean")["file-changes"] == []


# --- sessions that spoil their own ---


def test_a_session_that_swaps_its_directories_for_links_changes_nothing_outside(wire: Wire, project: Path) -> None:
    outside = Path(tempfile.mkdtemp(prefix="rpl-outside-", dir="/var/tmp"))
    (outside / "b").write_text("theirs")
    checkpoint(wire)
    wire.run(f"import os, shutil; shutil.rmtree('sub'); os.symlink({str(outside)!r}, 'sub')")
    assert wire.ask("rollback", session="s", to="clean").status == ["done"]
    assert (files(project)["sub/b"], (outside / "b").read_text()) == ("b", "theirs")
    shutil.rmtree(outside)


def test_a_session_that_closes_what_is_not_its_own_loses_the_way_back_of_its_files_alone(
    wire: Wire, project: Path
) -> None:
    checkpoint(wire, "first")
    wire.run(
        "import os\nfor fd in map('/proc/self/fd/{}'.format, os.listdir('/proc/self/fd')):\n"
        "    if os.path.lexists(fd) and 'deleted' in os.readlink(fd): os.close(int(fd[14:]))\n"
        "x = 1; open('a.txt', 'w').write('two')"
    )
    taken = checkpoint(wire, "second")
    assert any(each.startswith("files: ") for each in taken["not-restored"])
    wire.run("x = 2")
    assert wire.ask("rollback", session="s", to="second").status == ["done"]
    assert wire.run("x").value == "1"
    assert wire.ask("rollback", session="s", to="first").status == ["done"]  # its copy has kept the descriptor
    assert files(project)["a.txt"] == "one\n"


def test_what_others_do_to_the_directory_is_undone_as_well(wire: Wire, project: Path) -> None:
    checkpoint(wire)
    shutil.rmtree(project / "sub")
    (project / "sub").symlink_to("/nowhere")
    (project / "a.txt").chmod(0o400)
    assert wire.ask("rollback", session="s", to="clean").get("not-restored") is None
    assert files(project) == {"a.txt": "one\n", "sub/b": "b"}
    assert stat.S_IMODE((project / "a.txt").stat().st_mode) == 0o644


def test_the_command_line_opens_such_a_session_and_shows_its_changes(own_broker: BrokerProcess, project: Path) -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "replctl", *args, "--endpoint", own_broker.endpoint]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=project, env=own_broker.environ, check=False
        )

    assert run("new", "cli", "--files").returncode == 0
    assert run("checkpoint", "cli", "--name", "clean").returncode == 0
    run("eval", "-s", "cli", "open('a.txt', 'a').write('two\\n')")
    shown = run("diff", "cli", "clean").stdout
    assert shown.splitlines()[0] == "modified  a.txt"
    assert "+two" in shown.splitlines()
    with toolset(endpoint=own_broker.endpoint) as tools:
        found = tools.call("info", {"session": "cli", "what": "diff", "name": "clean"})
        assert "+two" in found.text.splitlines()
        assert found.structured["file_changes"] == [{"path": "a.txt", "change": "modified"}]
    attach = [sys.executable, "-m", "replctl", "attach", "cli", "--endpoint", own_broker.endpoint]
    prompt = subprocess.run(
        attach,
        input="/diff clean\n/diff\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=own_broker.environ,
        check=False,
    )
    assert "modified  a.txt" in prompt.stdout
    assert "+two" in prompt.stdout.splitlines()
    assert run("rollback", "cli", "clean").returncode == 0
    assert "no file has changed" in run("diff", "cli", "clean").stderr
    assert (project / "a.txt").read_text() == "one\n"
    run("close", "cli")

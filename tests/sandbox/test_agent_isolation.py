"""One broker for several agents: each identity has the directories that the config lists for it, and no other's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end, uid_of
from kit import BrokerProcess, CollectedReplies, LineWire, close_sessions
from unix_users import ADA, PEOPLE, connect_as

AGENTS = ("ada", "bob")


@pytest.fixture(scope="module")
def agents(who: str) -> Iterator[Path]:
    """Directories of two agents, and one that no agent has."""
    base = Path(tempfile.mkdtemp(prefix="rpl-agents-", dir="/tmp"))
    for name in (*AGENTS, "common"):
        (base / name / "sub").mkdir(parents=True)
        (base / name / "own.py").write_text(f"own = {name!r}")
        subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", base / name / "env"], check=True, timeout=60)
    (base / "ada/way").symlink_to(base / "bob")
    (base / "ada/borrowed/bin").mkdir(parents=True)
    (base / "ada/borrowed/bin/python").symlink_to(base / "bob/env/bin/python")
    (base / "ada/built/bin").mkdir(parents=True)
    (base / "ada/built/bin/python").symlink_to("/usr/bin/python3")
    (base / "ada/built/pyvenv.cfg").write_text(f"home = {base}/bob/env/bin\n")
    for path in (base, *base.rglob("*")):
        os.chown(path, uid_of(who), uid_of(who), follow_symlinks=False)
    base.chmod(0o755)
    yield base
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def broker(who: str, agents: Path) -> Iterator[BrokerProcess]:
    user = '"root"' if who == "root" else '"nobody"'
    listed = "".join(
        f'[[identities]]\nname = "{name}"\nuser = {user}\nworkspaces = ["{agents}/{name}"]\n' for name in AGENTS
    )
    broker = begin(who, "broker.tcp=127.0.0.1:0", f'session.load-paths=["{agents}"]', config=listed)
    for name in (*AGENTS, "unlisted"):
        command = [sys.executable, "-m", "replctl", "keys", "token", name]
        subprocess.run(
            command, env=broker.environ, cwd=broker.directory, check=True, stdout=subprocess.DEVNULL, timeout=20
        )
    for path in (broker.directory / "keys").rglob("*"):
        os.chown(path, uid_of(who), uid_of(who))
    os.chown(broker.directory / "keys", uid_of(who), uid_of(who))
    yield broker
    end(broker)


@pytest.fixture
def ada(broker: BrokerProcess) -> Iterator[LineWire]:
    wire = agent(broker, "ada")
    yield wire
    close_sessions(wire)
    wire.close()


def agent(broker: BrokerProcess, name: str) -> LineWire:
    """A connection of an agent's."""
    wire = LineWire(broker.listening["tcp"])
    token = (broker.directory / f"{name}.token").read_text().strip()
    assert wire.ask("hello", token=token)["identity"] == name
    return wire


def refused(answer: CollectedReplies) -> bool:
    """Return whether a path was refused for being outside the agent's own directories."""
    return answer.status[1:2] == ["error"] and "not in a workspace of ada" in answer["err"]


def test_an_agent_works_in_its_own_directories_alone(ada: LineWire, agents: Path) -> None:
    assert ada.ask("new-session", name="own", cwd=f"{agents}/ada").status == ["done"]
    assert ada.run("open('made', 'w').write('x')", session="own").value == "1"
    assert ada.ask("new-session", name="below", cwd=f"{agents}/ada/sub").status == ["done"]
    for directory in ("bob", "bob/sub", "ada/way", "ada/way/sub", "ada/../bob", "common", "absent", ""):
        answer = ada.ask("new-session", name="s", cwd=f"{agents}/{directory}")
        assert refused(answer), (directory, answer.messages)
    assert ada.run("open('way/own.py')", session="own")["ex"]["type"] == "FileNotFoundError"
    without = ada.run("1", session="t", cwd=f"{agents}/bob", cwd_needed=False)
    assert "not in a workspace of ada" in "".join(message.get("notice", "") for message in without.messages)


def test_an_agent_runs_environments_of_its_own_alone(ada: LineWire, agents: Path) -> None:
    assert ada.ask("new-session", name="own", runtime=f"{agents}/ada/env").status == ["done"]
    assert ada.run("import sys; sys.prefix", session="own").value == repr(f"{agents}/ada/env")
    assert ada.ask("new-session", name="plain", runtime="/usr/bin/python3").status == ["done"]
    for path in ("bob/env", "ada/way/env", "common/env", "ada/borrowed", "ada/built"):
        answer = ada.ask("new-session", name="s", runtime=f"{agents}/{path}")
        assert refused(answer), (path, answer.messages)
        moved = ada.ask("env", session="plain", action="activate", path=f"{agents}/{path}")
        assert refused(moved), (path, moved.messages)


def test_an_agent_loads_files_of_its_own_alone(ada: LineWire, agents: Path) -> None:
    assert ada.ask("new-session", name="own", cwd=f"{agents}/ada").status == ["done"]
    assert ada.ask("load-file", session="own", file="own.py").status == ["done"]
    assert ada.run("own", session="own").value == "'ada'"
    for path in ("bob/own.py", "ada/way/own.py", "common/own.py", "absent.py"):
        answer = ada.ask("load-file", session="own", file=f"{agents}/{path}")
        assert answer.status == ["done", "error", "path-not-allowed"], (path, answer.messages)


def test_an_identity_that_is_not_listed_goes_by_the_brokers_own_rule(
    broker: BrokerProcess, agents: Path, who: str
) -> None:
    wire = agent(broker, "unlisted")
    answer = wire.ask("new-session", name="s", cwd=f"{agents}/common")
    if who == "root":
        assert "[[identities]]" in answer["err"]
    else:
        assert answer.status == ["done"], answer.messages
    close_sessions(wire)
    wire.close()


def test_a_clone_of_anothers_session_has_not_its_directory(broker: BrokerProcess, ada: LineWire, agents: Path) -> None:
    bob = agent(broker, "bob")
    opened = bob.ask("new-session", name="bobs", cwd=f"{agents}/bob")
    assert opened.status == ["done"], opened.messages
    assert bob.ask("share", session="bobs", who="ada", level="write").status == ["done"]
    copied = ada.ask("clone", session=opened["session"], name="copy")
    assert copied.status == ["done"], copied.messages
    assert "neither its directory nor its environment" in copied["notice"]
    assert ada.run(f"import os; os.path.exists('{agents}/bob')", session="copy").value == "False"
    ada.ask("close", session="copy")
    bob.ask("close", session="bobs")
    bob.close()


@pytest.mark.needs_root("to be another user")
def test_without_a_sandbox_a_root_broker_opens_sessions_for_root_alone(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "broker.tcp=127.0.0.1:0", through=[sys.executable, PEOPLE])
    try:
        ada = connect_as(broker.listening["tcp"], ADA)
        for answer in (ada.run("1"), ada.ask("new-session", name="n"), ada.ask("new-session", runtime="/usr")):
            assert answer.status[1] == "error", answer.messages
            assert "as root" in answer["err"]
        ada.close()
        with broker.wire() as wire:
            assert wire.run("6*7").value == "42"
            assert wire.ask("transfer", session="s", who="uid:1001").status == ["done"]
            given = next(each["session"] for each in wire.ask("ls-sessions")["sessions"])
            assert "as root" in wire.ask("reset", session=given)["err"]
    finally:
        broker.stop()

"""The sandbox as clients of a broker meet it: on by default, tightened by requests, refused where it cannot be had."""

from __future__ import annotations

import os
import shutil
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end, uid_of
from kit import BrokerProcess, Wire, is_alive, wait_until


@pytest.fixture(scope="module")
def start(who: str) -> Iterator[Callable[..., BrokerProcess]]:
    brokers: list[BrokerProcess] = []

    def started(*settings: str, **options: object) -> BrokerProcess:
        brokers.append(begin(who, *settings, **options))
        return brokers[-1]

    yield started
    for broker in brokers:
        end(broker)


@pytest.fixture(scope="module")
def broker(start: Callable[..., BrokerProcess]) -> BrokerProcess:
    return start()


@pytest.fixture
def work(who: str) -> Iterator[Path]:
    """A directory of the broker's user."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-work-", dir="/tmp"))
    os.chown(directory, uid_of(who), uid_of(who))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def home(who: str, broker: BrokerProcess) -> str:
    """The home of the broker's user."""
    return str(broker.directory if who == "user" and os.getuid() == 0 else Path.home())


def test_it_is_on_unless_the_config_file_says_otherwise(wire: Wire, broker: BrokerProcess) -> None:
    reply = wire.ask("describe")["sandbox"]
    assert {"mounts", "network", "seccomp", "user", "capabilities"} <= set(reply["layers"])
    assert (reply["profile"], reply["network"]) == ("workspace-write", "none")
    assert not [warning for warning in broker.ready["warnings"] if "sandbox" in warning]
    assert wire.run("1").value == "1"
    assert wire.ask("info", session="s")["info"]["sandbox"]["layers"] == reply["layers"]


def test_a_session_writes_in_its_directory_and_nowhere_else(
    wire: Wire, work: Path, broker: BrokerProcess, home: str, who: str
) -> None:
    wire.ask("new-session", name="s", cwd=str(work))
    assert wire.run("open('a.txt', 'w').write('hi'); import os; os.getcwd()").value == repr(str(work))
    assert (work / "a.txt").read_text() == "hi"
    assert (work / "a.txt").stat().st_uid == uid_of(who)
    for path in ("/etc/x", "/usr/x", str(broker.directory / "x"), f"{home}/x"):
        refused = wire.run(f"open({path!r}, 'w')")
        assert refused["ex"]["type"] in ("PermissionError", "FileNotFoundError", "OSError"), path
    wire.run(f"open({str(work.parent / 'rpl-outside')!r}, 'w')")  # its own /tmp, not the machine's
    assert not (work.parent / "rpl-outside").exists()


def test_the_brokers_own_directory_and_secrets_are_not_seen(wire: Wire, broker: BrokerProcess) -> None:
    secret = broker.directory / "secret"
    secret.write_text("s3cr3t")
    assert wire.run(f"open({str(secret)!r}).read()")["ex"]["type"] in ("FileNotFoundError", "PermissionError")
    assert wire.run("import os; [k for k in os.environ if k.startswith('REPLCTL')]").value == "[]"


def test_a_python_in_a_closed_home_is_reached_and_nothing_else_in_it(
    start: Callable[..., BrokerProcess], who: str, work: Path
) -> None:
    """As with pyenv below root's home; sessions of a root broker are somebody else, who could not enter it."""
    home = Path(tempfile.mkdtemp(prefix="rpl-home-", dir="/tmp"))
    try:
        venv.create(home / "tools/env", symlinks=True)
        (home / "diary").write_text("for nobody")
        for path in (home, *home.rglob("*")):
            os.chown(path, uid_of(who), uid_of(who), follow_symlinks=False)
        home.chmod(0o700)
        python = home / "tools/env/bin/python"
        with start(f'python.interpreter="{python}"').wire() as wire:
            wire.ask("new-session", name="s", cwd=str(work))
            assert wire.run("import sys; sys.executable").value == repr(str(python))
            wire.run("open('made', 'w').close()")
            assert (work / "made").stat().st_uid == uid_of(who)
            assert wire.run(f"open('{home}/diary')")["ex"]["type"] == "FileNotFoundError"
            pid = wire.ask("info", session="s")["info"]["pid"]
            assert os.stat(f"/proc/{pid}").st_uid != 0
    finally:
        shutil.rmtree(home)


def test_there_is_no_network(wire: Wire, broker: BrokerProcess) -> None:
    assert wire.run("import socket; socket.create_connection(('127.0.0.1', 22), 2)")["ex"]["type"] in (
        "ConnectionRefusedError",
        "OSError",
        "PermissionError",
    )
    path = broker.endpoint.removeprefix("ipc://")
    code = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
    assert wire.run(code)["ex"]["type"] in ("FileNotFoundError", "PermissionError", "ConnectionRefusedError")


def test_a_home_is_no_place_to_work_and_a_wish_for_it_can_be_let_go(wire: Wire, home: str) -> None:
    refused = wire.ask("new-session", name="s", cwd=home)
    assert refused.status == ["done", "error", "invalid-request"]
    assert "home" in refused["err"]
    opened = wire.ask("new-session", name="s", cwd=home, cwd_needed=False)
    assert opened.status == ["done"]
    assert "no working directory" in opened["notice"]
    assert wire.run("6*7").value == "42"


def test_a_request_makes_it_tighter_and_never_looser(wire: Wire, work: Path) -> None:
    opened = wire.ask("new-session", name="s", cwd=str(work), profile="read-only", memory_bytes=200 * 1024 * 1024)
    assert opened.status == ["done"], opened.messages
    assert wire.run("open('a.txt', 'w')")["ex"]["type"] in ("PermissionError", "OSError")
    assert wire.run("x = bytearray(600 << 20)").status[1] == "error"
    assert wire.ask("info", session="s")["info"]["sandbox"]["tighter"] == {
        "profile": "read-only",
        "memory-bytes": 209715200,
    }
    for loose in ({"network": "host"}, {"memory_bytes": 1 << 40}, {"pids": 10**6}):
        refused = wire.ask("new-session", name="t", **loose)
        assert refused.status == ["done", "error", "invalid-request"]
        assert "more than this broker grants" in refused["err"]
    assert wire.ask("new-session", name="t", profile="off").status == ["done", "error", "invalid-request"]
    wire.ask("reset", session="s")
    assert wire.run("open('a.txt', 'w')")["ex"]["type"] in ("PermissionError", "OSError")


def test_variables_that_are_the_sandboxs_own_cannot_be_set(wire: Wire) -> None:
    refused = wire.ask("new-session", name="s", env=["HOME=/root"])
    assert refused.status == ["done", "error", "invalid-request"]
    assert "HOME" in refused["err"]


def test_clones_stacks_and_environments_work_inside(wire: Wire, work: Path) -> None:
    wire.ask("new-session", name="s", cwd=str(work))
    wire.run("x = [1]\ndef f(): return x")
    assert wire.ask("clone", session="s", name="copy").status == ["done"]
    assert wire.run("f()", session="copy").value == "[1]"
    running = wire.send("eval", session="s", code="print('in', flush=True)\nwhile True: pass")
    assert wire.receive()["out"] == "in\n"
    assert wire.ask("stack", session="s")["threads"][0]["frames"][0]["file"] == "<s:3>"
    wire.ask("interrupt", session="s")
    assert wire.answer(running).status == ["done", "interrupted"]
    assert wire.ask("env", session="s", action="status").status == ["done"]


def test_nothing_is_left_when_a_session_is_killed(wire: Wire) -> None:
    wire.run("import subprocess, sys; p = subprocess.Popen(['sleep', '1000'], start_new_session=True); p.pid")
    processes = wire.ask("stack", session="s")["processes"]
    assert any("sleep" in each["command"] for each in processes)
    wire.ask("close", session="s")
    wait_until(lambda: not any(is_alive(each["pid"]) for each in processes), "the session's processes are gone")


def test_without_a_sandbox_nothing_runs(start: Callable[..., BrokerProcess]) -> None:
    broker = start(config='[sandbox]\nprofile = "off"\n')
    assert any("no session will be opened" in warning for warning in broker.ready["warnings"])
    with broker.wire() as wire:
        for op, fields in (
            ("eval", {"code": "1"}),
            ("new-session", {"name": "s"}),
            ("complete", {"code": "a", "pos": 1}),
            ("load-file", {"file": "/x"}),
        ):
            refused = wire.ask(op, **fields)
            assert refused.status == ["done", "error", "sandbox-unavailable"], op
            assert refused["cause"]
        assert wire.ask("ls-sessions")["sessions"] == []


def test_the_config_file_may_allow_sessions_without_one(start: Callable[..., BrokerProcess]) -> None:
    broker = start(config='[sandbox]\nprofile = "off"\nallow-unsandboxed = true\n')
    assert any("not sandboxed" in warning for warning in broker.ready["warnings"])
    with broker.wire() as wire:
        assert wire.ask("describe")["sandbox"] == "none"
        assert wire.run("1").value == "1"
        assert wire.ask("new-session", name="t", profile="read-only").status[-1] == "sandbox-unavailable"

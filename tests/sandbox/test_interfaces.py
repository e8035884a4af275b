"""A session without a directory, because the sandbox lets no home in: every door says so, and runs the code all the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
sys.path.insert(0, str(Path(__file__).parents[1] / "mcp"))
sys.path.insert(0, str(Path(__file__).parents[1] / "acp"))

from acp_kit import Agent, environ
from kit import TIMEOUT_S, BrokerProcess
from mcp_kit import HELLO, finish, receive, send_request, start_raw
from replctl.tools import ToolSettings, toolset

WHY = "the session has no working directory: "


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    broker = BrokerProcess(
        Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp")), "limits.rate-limit-per-min=0", sandbox=True
    )
    yield broker
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(broker.directory)


def at_home(broker: BrokerProcess, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
    """A command that is given in the user's home directory."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "replctl", *words, "--endpoint", broker.endpoint],
        env=broker.environ,
        input=input,
        cwd=Path.home(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )


def test_eval_says_it_once(broker: BrokerProcess) -> None:
    done = at_home(broker, "eval", "-s", "door-eval", "6*7")
    assert done.stdout == "42\n"
    assert done.stderr.count(WHY) == 1
    assert "home" in done.stderr
    assert WHY not in at_home(broker, "eval", "-s", "door-eval", "6*7").stderr


def test_eval_has_it_as_a_field(broker: BrokerProcess) -> None:
    done = at_home(broker, "eval", "-s", "door-json", "--json", "6*7")
    assert json.loads(done.stdout)["notice"].startswith(WHY)


def test_attach_says_it_before_the_first_block(broker: BrokerProcess) -> None:
    done = at_home(broker, "attach", "door-attach", input="6*7\n")
    assert done.stdout == "42\n"
    assert done.stderr.count(WHY) == 1


def test_mcp_says_it_with_the_first_answer(broker: BrokerProcess) -> None:
    process = start_raw(broker, cwd=Path.home())
    send_request(process, "initialize", 1, **HELLO)
    receive(process)
    results = []
    for number in (2, 3):
        send_request(process, "tools/call", number, name="eval", arguments={"code": "6*7", "session": "door-mcp"})
        results.append(receive(process)["result"]["content"][0]["text"])
    send_request(process, "tools/call", 4, name="sessions", arguments={"action": "new", "session": "door-new"})
    opened = receive(process)["result"]["content"][0]["text"]
    finish(process)
    assert [text.splitlines()[0] for text in results] == ["42", "42"]
    assert [text.count(WHY) for text in results] == [1, 0]
    assert opened.startswith(f"session door-new is open; {WHY}")


def test_acp_says_it_with_the_first_turn(broker: BrokerProcess, tmp_path: Path) -> None:
    agent = Agent(environ(tmp_path, broker.endpoint))
    try:
        agent.start()
        session = agent.new(str(Path.home()))
        first, second = agent.prompt(session, "6*7"), agent.prompt(session, "6*7")
        assert first.text.startswith(WHY)
        assert first.text.endswith("42")
        assert second.text == "42"
        agent.call("session/close", sessionId=session)
        assert agent.end() == 0
    finally:
        agent.stop()


@pytest.mark.parametrize(
    ("code", "runtime", "hint"),
    [
        ("import socket; socket.getaddrinfo('example.com', 80)", "python", "no network but its own localhost"),
        ("import socket; socket.create_connection(('192.0.2.1', 80))", "python", "(sandbox.network)"),
        ("open('/usr/made', 'w')", "python", "/work (but not in sandbox.protected-paths) and /tmp"),
        ("f = open('/tmp/big', 'wb')\nfor n in range(99): f.write(bytes(1 << 20))", "python", "(sandbox.tmp-bytes)"),
        ("f = open('big', 'wb')\nf.truncate(1 << 40)", "python", "(sandbox.file-bytes)"),
        ("bytearray(1 << 40)", "python", "1024 MiB of memory (sandbox.memory-bytes)"),
        ("echo x > /usr/made", "bash", "(sandbox.writable-paths adds more)"),
    ],
)
def test_a_model_is_told_what_the_sandbox_has_to_do_with_a_failure(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory, code: str, runtime: str, hint: str
) -> None:
    work = tmp_path_factory.mktemp("told") / "work"
    work.mkdir()
    with toolset(endpoint=broker.endpoint, settings=ToolSettings(cwd=str(work))) as tools:
        answer = tools.call("eval", {"code": code, "session": "told", "runtime": runtime})
        assert hint in answer.text
        if runtime == "python":
            assert answer.error
            about = tools.call("info", {"session": "told"}).text
            assert f"sandbox: no network; writes in {work}, /tmp (64 MiB, emptied by a reset)" in about
            assert "memory 1024 MiB" in about
        tools.call("sessions", {"action": "close", "session": "told"})

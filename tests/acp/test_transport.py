"""The process: what stands on stdout, how it ends, and what is left of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from acp_kit import COMMAND, Agent, Start, environ
from kit import BrokerProcess, is_alive, wait_until

SLEEPS = "print('on'); import time; time.sleep(30); late = 1"
LOCALES = [{"LANG": "C", "LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]


@pytest.mark.parametrize("locale", LOCALES)
def test_text_is_utf8_both_ways_whatever_the_locale(start: Start, locale: dict[str, str]) -> None:
    agent = start(**locale)
    session = agent.new()
    turn = agent.prompt(session, "print('grüße ✓ 漢字 🜁'); 'ü' + '✓'")
    assert "grüße ✓ 漢字 🜁" in turn.output
    assert "ü✓" in turn.text
    agent.result("session/load", sessionId=session, cwd="/tmp")
    assert any("漢字" in json.dumps(each, ensure_ascii=False) for each in agent.updates[-4:])
    agent.call("session/delete", sessionId=session)


def test_nothing_but_messages_is_on_stdout_and_notes_go_to_stderr(start: Start) -> None:
    agent = start()
    agent.notify("session/cancel", sessionId=3)
    session = agent.new()
    agent.prompt(session, "import os; os.write(1, b'raw\\n'); os.system('echo child'); print('more')")
    agent.call("session/delete", sessionId=session)
    assert agent.end() == 0  # every line was checked as it came
    assert agent.stderr_text.startswith("replctl acp: dropped session/cancel: Invalid params")


def test_the_same_note_is_said_once(start: Start) -> None:
    agent = start()
    for number in range(400):
        agent.notify("session/cancel", sessionId=f"acp-{number}")
    agent.start()
    assert agent.end() == 0
    assert len(agent.stderr_text.splitlines()) == 1


def test_the_end_of_stdin_ends_it_at_once_with_code_0(start: Start) -> None:
    agent = start()
    agent.start()
    assert agent.end() == 0
    assert agent.stderr_text == ""


def test_a_last_line_without_its_newline_is_heard(start: Start) -> None:
    agent = start()
    agent.methods[1] = "initialize"
    agent.raw(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}')
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    assert agent.reply(1)["result"]["protocolVersion"] == 1
    assert agent.end() == 0


def test_messages_from_a_file_are_answered_to_a_file(tmp_path: Path, acp_broker: BrokerProcess) -> None:
    asked, result = tmp_path / "in", tmp_path / "out"
    asked.write_text(
        '{"jsonrpc":"2.0","id":1,"method":"initialize"}\n{"jsonrpc":"2.0","id":2,"method":"session/list"}\n'
    )
    with asked.open("rb") as source, result.open("wb") as sink:
        done = subprocess.run(
            COMMAND, stdin=source, stdout=sink, env=environ(tmp_path, acp_broker.endpoint), timeout=20
        )
    assert done.returncode == 0
    assert {json.loads(line)["id"] for line in result.read_text().splitlines()} == {1, 2}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order(start: Start, number: int) -> None:
    agent = start()
    session = agent.new()
    agent.send_prompt(session, SLEEPS)
    agent.until_running()
    assert agent.signal(number) == 0
    again = start()
    again.result("session/resume", sessionId=session, cwd="/tmp")
    assert "NameError" in again.prompt(session, "late").text
    again.call("session/delete", sessionId=session)


def test_the_end_of_stdin_in_the_middle_of_a_turn_interrupts_it_and_keeps_the_session(
    start: Start, acp_broker: BrokerProcess
) -> None:
    agent = start()
    session = agent.new()
    agent.prompt(session, "x = 41")
    name = agent.send_prompt(session, SLEEPS)
    agent.until_running()
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    assert agent.turn(name).stop == "cancelled"
    assert agent.end() == 0
    with acp_broker.wire() as wire:
        assert wire.run("x + 1", session).value == "42"
        assert wire.ask("jobs", session=session)["jobs"][1]["status"] == ["done", "interrupted"]
        wire.ask("close", session=session)


def test_code_that_does_not_obey_when_the_client_goes_is_left_to_run_and_told(
    start: Start, acp_broker: BrokerProcess
) -> None:
    agent = start()
    session = agent.new()
    stubborn = "import time\nprint('on')\nwhile True:\n    try: time.sleep(30)\n    except KeyboardInterrupt: pass"
    name = agent.send_prompt(session, stubborn)
    agent.until_running()
    agent.process.send_signal(signal.SIGTERM)
    turn = agent.turn(name)
    assert turn.stop == "cancelled"
    assert "keeps running" in turn.text
    assert agent.process.wait(20) == 0
    with acp_broker.wire() as wire:
        assert wire.ask("jobs", session=session)["jobs"][0]["state"] == "running"
        wire.ask("close", session=session)


def test_a_client_that_closes_both_ends_in_the_middle_of_a_turn_ends_it(
    start: Start, acp_broker: BrokerProcess
) -> None:
    agent = start()
    session = agent.new()
    agent.send_prompt(session, "print('on')\nwhile True: print('more')")
    agent.until_running()
    assert agent.process.stdin is not None
    assert agent.process.stdout is not None
    agent.process.stdout.close()
    agent.process.stdin.close()
    assert agent.process.wait(20) == 0
    with acp_broker.wire() as wire:
        assert wire.run("6*7", session).value == "42"
        wire.ask("close", session=session)


def test_a_client_that_stops_reading_is_noticed_by_its_closed_pipe(start: Start) -> None:
    agent = start()
    agent.start()
    assert agent.process.stdout is not None
    agent.process.stdout.close()
    agent.methods[99] = "initialize"
    agent.ask("initialize", name=99)
    assert agent.process.wait(20) == 0


def test_a_killed_adapter_leaves_no_process_and_its_eval_goes_on(start: Start, acp_broker: BrokerProcess) -> None:
    agent = start()
    session = agent.new()
    agent.send_prompt(session, "print('on'); import time; time.sleep(0.3); done = 'yes'")
    agent.until_running()
    agent.process.kill()
    assert agent.process.wait(20) == -signal.SIGKILL
    assert not is_alive(agent.process.pid)
    with acp_broker.wire() as wire:
        assert wire.run("done", session).value == "'yes'"
        wire.ask("close", session=session)


def test_a_client_that_reads_slowly_gets_every_message_whole(start: Start) -> None:
    agent = start()
    session = agent.new()
    for _ in range(30):
        agent.prompt(session, "print('x' * 30_000)")
    name = agent.ask("session/load", {"sessionId": session, "cwd": "/tmp"})  # a megabyte that nobody reads yet
    agent.notify("session/cancel", sessionId=session)
    before = len(agent.updates)
    assert "result" in agent.reply(name)
    kinds = [each["update"]["sessionUpdate"] for each in agent.updates[before:]]
    assert kinds.count("user_message_chunk") == 30
    agent.call("session/delete", sessionId=session)


def test_endless_output_does_not_fill_the_memory_of_an_adapter_whose_client_does_not_read(start: Start) -> None:
    agent = start()
    session = agent.new()
    agent.send_prompt(
        session, "import time, os\nend = time.time() + 1\nwhile time.time() < end: os.write(1, b'y' * 60_000)"
    )
    agent.update("tool_call")

    def rss() -> int:
        text = Path(f"/proc/{agent.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1])

    first = rss()
    agent.turn(agent._count)
    assert rss() - first < 100_000  # kB
    agent.call("session/delete", sessionId=session)


def test_descriptors_are_not_leaked_from_turn_to_turn(agent: Agent, session: str) -> None:
    agent.prompt(session, "1")

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{agent.process.pid}/fd"))

    before = descriptors()
    for _ in range(20):
        agent.prompt(session, "1")
    assert descriptors() == before


def test_a_broker_that_goes_away_is_content_and_the_next_prompt_gets_a_new_one(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="rpa-", dir="/tmp"))
    broker = BrokerProcess(directory)
    agent = Agent(environ(directory, broker.endpoint))
    try:
        session = agent.new(str(tmp_path))
        agent.prompt(session, "x = 1")
        name = agent.send_prompt(session, SLEEPS)
        agent.until_running()
        broker.kill()
        turn = agent.turn(name)
        assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
        assert "The code may run on: `/jobs` shows it once a broker listens again." in turn.text
        turn = agent.prompt(session, "2")
        assert turn.text.startswith("2")
        assert "variables are lost" in turn.text
        assert agent.end() == 0
        assert "started a broker" in agent.stderr_text
    finally:
        agent.stop()
        subprocess.run(
            [*COMMAND[:3], "shutdown"],
            env=environ(directory, broker.endpoint),
            timeout=30,
            check=True,
            capture_output=True,
        )
        wait_until(lambda: not (directory / "run" / "b.sock").exists(), "the broker is gone")
        shutil.rmtree(directory)


def test_a_prompt_that_finds_no_broker_is_an_error_with_its_tool_call_closed(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="rpa-", dir="/tmp"))
    broker = BrokerProcess(directory)
    agent = Agent(environ(directory, broker.endpoint), "--no-start")
    try:
        session = agent.new(str(tmp_path))
        agent.prompt(session, "1")
        assert broker.stop() == 0
        option = {"sessionId": session, "configId": "mode", "value": "auto"}
        wait_until(
            lambda: agent.call("session/set_config_option", **option)["error"]["data"]["kind"] == "no-broker",
            "the lost connection is noticed",
        )
        name = agent.send_prompt(session, "2")
        error = agent.reply(name)["error"]
        assert (error["code"], error["data"]["kind"]) == (-32603, "no-broker")
        assert agent.updates[-1]["update"]["status"] == "failed"
        assert agent.end() == 0
    finally:
        agent.stop()
        broker.stop()
        shutil.rmtree(directory)


def test_a_broker_that_cannot_be_reached_is_an_error_of_the_protocol(start: Start) -> None:
    agent = start()
    session = agent.new()
    assert agent.end() == 0
    lonely = start("--no-start", REPLCTL_ENDPOINT="ipc:///tmp/no-broker-is-here.sock")
    for method in ("session/load", "session/resume"):
        error = lonely.error(method, sessionId=session, cwd="/tmp")
        assert (error["code"], error["data"]["kind"]) == (-32603, "no-broker")
    assert lonely.end() == 0

"""Limits of the broker: reported as content, and streamed output stays whole."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from acp_kit import Agent, environ
from kit import BrokerProcess


@pytest.fixture(scope="module")
def tight() -> Iterator[Agent]:
    """An agent whose broker waits and runs for a moment only, and has room for one session."""
    directory = Path(tempfile.mkdtemp(prefix="rpa-", dir="/tmp"))
    broker = BrokerProcess(
        directory,
        "limits.max-wait-ms=150",
        "limits.max-job-time-ms=1500",
        "limits.interrupt-grace-ms=300",
        "limits.max-sessions=1",
        "limits.rate-limit-per-min=0",
    )
    agent = Agent(environ(directory, broker.endpoint))
    yield agent
    assert agent.end() == 0
    assert broker.stop() == 0
    shutil.rmtree(directory)


@pytest.fixture
def session(tight: Agent) -> Iterator[str]:
    session = tight.new()
    yield session
    tight.call("session/delete", sessionId=session)


def test_an_eval_that_outlasts_the_brokers_wait_is_read_to_its_end(tight: Agent, session: str) -> None:
    code = "import time\nfor i in range(8): print('é', i, flush=True); time.sleep(0.1)\n'end'"
    turn = tight.prompt(session, code)
    assert (turn.stop, turn.text) == ("end_turn", "'end'")
    assert turn.output == "```\n" + "".join(f"é {i}\n" for i in range(8)) + "```"


def test_a_cancel_finds_an_eval_that_is_being_read_on(tight: Agent, session: str) -> None:
    name = tight.send_prompt(session, "import time\ntime.sleep(0.4); print('on', flush=True); time.sleep(30)")
    tight.until_running()
    tight.cancel(session)
    assert tight.turn(name).stop == "cancelled"
    assert tight.prompt(session, "6*7").text == "42"


def test_a_time_limit_is_content(tight: Agent, session: str) -> None:
    turn = tight.prompt(session, "while True: pass")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert turn.text == "stopped at its time limit of 1.5 s"
    assert turn.tool["rawOutput"]["state"] == "kept"


def test_no_room_for_another_session_is_content(tight: Agent, session: str) -> None:
    tight.prompt(session, "x = 1")
    other = tight.new()
    turn = tight.prompt(other, "1")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert "max-sessions = 1" in turn.text
    assert "try again in" in turn.text
    assert tight.prompt(session, "x").text == "1"
    tight.call("session/delete", sessionId=other)


def test_a_prompt_of_ten_megabytes_is_refused_before_it_is_echoed(tight: Agent, session: str) -> None:
    turn = tight.prompt(session, f"x = '{'y' * (10 << 20)}'")
    assert turn.stop == "end_turn"
    assert "is longer than a request may be (max-message-bytes = 1048576)" in turn.text
    assert sum(len(json.dumps(update)) for update in turn.updates) < 10_000
    assert tight.prompt(session, "6*7").text == "42"

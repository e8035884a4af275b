"""The tool sets over a real broker, as somebody's own agent loop uses them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kit import BrokerProcess, wait_until
from replctl import Client
from replctl.tools import Tools, toolset


@pytest.fixture
def tools(broker: BrokerProcess) -> Iterator[Tools]:
    with toolset(endpoint=broker.endpoint, agent="loop") as tools:
        yield tools


def test_state_stays_between_calls(tools: Tools) -> None:
    tools.call("eval", {"code": "x = 41", "session": "stay"})
    assert tools.call("eval", {"code": "x + 1", "session": "stay"}).structured["value"] == "42"


def test_code_over_the_brokers_bound_is_refused_and_costs_no_connection(tools: Tools) -> None:
    answer = tools.call("eval", {"code": "y" * 3_000_000, "session": "stay"})
    assert answer.structured["status"] == "message-too-large"
    assert "(max-message-bytes = 1048576)" in answer.text


def test_only_the_users_frames_are_shown(tools: Tools) -> None:
    answer = tools.call("eval", {"code": "def f():\n    1/0\nf()", "session": "frames"})
    assert answer.error
    assert answer.text.count("File ") == 2
    assert "replharness" not in answer.text
    assert "ZeroDivisionError: division by zero" in answer.text


def test_an_output_of_megabytes_is_counted_and_can_be_paged(tools: Tools) -> None:
    code = "for n in range(700_000): print(n)"
    answer = tools.call("eval", {"code": code, "session": "much", "wait": 60})
    assert len(answer.text) < 5000
    assert answer.text.startswith("0\n1\n2\n")
    assert "\n699999\n" in answer.text
    eval_id = answer.structured["eval_id"]
    page = tools.call("read", {"session": "much", "eval_id": eval_id, "offset": 4000})
    offset = page.structured["offset"]
    assert f"[more: read(session='much', eval_id={eval_id}, offset={offset})]" in page.text
    assert offset == 8000
    assert "\n1500\n" in page.text
    found = tools.call("read", {"session": "much", "eval_id": eval_id, "grep": "69999", "wait": 0})
    assert "699990\n" in found.text


def test_pages_together_are_the_whole_output(tools: Tools) -> None:
    answer = tools.call("eval", {"code": "print('\\n'.join(map(str, range(4000))), end='')", "session": "pages"})
    text, offset = "", 0
    pages = 0
    while (page := _page(tools, answer.structured["eval_id"], offset)) is not None:
        text, offset, pages = text + page[0], page[1], pages + 1
    assert text.replace("\n", "") == "".join(map(str, range(4000)))
    assert pages > 3


def _page(tools: Tools, eval_id: int, offset: int) -> tuple[str, int] | None:
    answer = tools.call("read", {"session": "pages", "eval_id": eval_id, "offset": offset, "wait": 0})
    return (answer.structured["out"], answer.structured["offset"]) if "out" in answer.structured else None


def test_long_code_goes_on_and_is_read_later(tools: Tools) -> None:
    code = "import time\nprint('begun', flush=True)\nwhile not globals().get('go'): time.sleep(.01)\n'end'"
    answer = tools.call("eval", {"code": code, "session": "long", "wait": 0.3})
    assert answer.structured["status"] == "running"
    assert "begun" in answer.text
    assert tools.call("interrupt", {"session": "long"}).structured["interrupted"] is True
    end = tools.call("read", {"session": "long", "eval_id": answer.structured["eval_id"]})
    assert end.structured["status"] == "interrupted"
    assert end.structured["state"] == "kept"


def test_input_is_asked_for_and_given(tools: Tools) -> None:
    asked = tools.call("eval", {"code": "a = input('one ')\nb = input('two ')\na + b", "session": "ask"})
    assert asked.structured["status"] == "waiting-for-input"
    again = tools.call("stdin", {"session": "ask", "text": "x", "wait": 3600})
    assert again.structured["status"] == "waiting-for-input"
    assert "two" in again.text
    for wait in (0, 3600):
        looked = tools.call("read", {"session": "ask", "eval_id": asked.structured["eval_id"], "wait": wait})
        assert looked.structured["status"] == "waiting-for-input"
        assert "one two" in looked.text
    end = tools.call("stdin", {"session": "ask", "text": "y", "wait": 20})
    assert end.structured["value"] == "'xy'"


def test_a_prompt_on_stderr_is_there_when_the_code_waits(tools: Tools) -> None:
    code = "import sys\nsys.stderr.write('who? '); sys.stderr.flush()\nsys.stdin.readline()"
    for n in range(20):
        asked = tools.call("eval", {"code": code, "session": "prompt"})
        assert asked.structured["err"] == "who? "
        assert tools.call("stdin", {"session": "prompt", "text": str(n), "wait": 20}).structured["value"] == repr(
            f"{n}\n"
        )


def test_a_page_of_code_that_runs_loses_nothing_of_what_follows_it(tools: Tools) -> None:
    code = "import time\nfor n in range(3000): print(n)\nwhile not globals().get('go'): time.sleep(.01)"
    ran = tools.call("eval", {"code": code, "session": "full", "wait": 0.5})
    page = tools.call("read", {"session": "full", "eval_id": ran.structured["eval_id"], "offset": 0, "wait": 3600})
    assert page.structured["status"] == "running"
    assert page.structured["offset"] == 4000
    tools.call("interrupt", {"session": "full"})


def test_an_interrupt_that_hits_nothing_says_what_it_looked_for(tools: Tools) -> None:
    loop = {"code": "while True: pass", "session": "hits", "wait": 0.1}
    tools.call("eval", loop)
    tools.call("eval", loop)
    missed = tools.call("interrupt", {"session": "hits", "eval_id": 9})
    assert missed.text == "eval 9 is neither running nor queued in session hits"
    queued = tools.call("read", {"session": "hits", "eval_id": 2, "wait": 0.1})
    assert "eval 2 is queued, 1 before it" in queued.text
    hit = tools.call("interrupt", {"session": "hits", "all": True})
    assert hit.text == "interrupted eval 1 of session hits and all queued evals; its variables are kept"
    tools.call("read", {"session": "hits", "eval_id": 1})
    assert tools.call("interrupt", {"session": "hits"}).text == "nothing is running in session hits"


def test_a_runtime_that_a_session_does_not_have_is_told(tools: Tools) -> None:
    tools.call("eval", {"code": "1", "session": "kind", "runtime": "python"})
    assert "runs python" not in tools.call("eval", {"code": "1", "session": "kind", "runtime": "python"}).text
    answer = tools.call("eval", {"code": "1", "session": "kind", "runtime": "bash"})
    assert "[session kind runs python; `runtime` counts when a session is opened]" in answer.text
    opened = tools.call("sessions", {"action": "new", "session": "kind", "runtime": "bash"})
    assert opened.text.startswith("session kind is there already, in ")
    assert "; session kind runs python" in opened.text


def test_an_eval_whose_session_is_closed_is_not_told_of_a_fresh_worker(tools: Tools, broker: BrokerProcess) -> None:
    with toolset(endpoint=broker.endpoint) as other, ThreadPoolExecutor(1) as pool:
        call = pool.submit(other.call, "eval", {"code": "while True: pass", "session": "shut"})
        wait_until(
            lambda: tools.call("info", {"session": "shut", "what": "jobs"}).text.startswith("1: running"), "it runs"
        )
        tools.call("sessions", {"action": "close", "session": "shut"})
        text = call.result(20).text
    assert text.splitlines()[-1] == (
        "[interrupted, state lost: closed by loop; earlier variables and imports are lost, the session is closed]"
    )


def test_a_session_is_described_without_running_code(tools: Tools) -> None:
    tools.call("eval", {"code": "numbers = [1, 2]", "session": "look"})
    answer = tools.call("info", {"session": "look"})
    assert "numbers: list of 2 = [1, 2]" in answer.text
    assert answer.structured["variables"] == [{"name": "numbers", "type": "list", "size": 2, "preview": "[1, 2]"}]
    jobs = tools.call("info", {"session": "look", "what": "jobs"})
    assert jobs.structured["jobs"] == [{"eval_id": 1, "state": "ok", "epoch": 1, "code": "numbers = [1, 2]"}]


def test_a_reset_says_what_is_gone(tools: Tools) -> None:
    tools.call("eval", {"code": "x = 1", "session": "again"})
    answer = tools.call("reset", {"session": "again"})
    assert answer.structured == {"status": "ok", "session": "again", "epoch": 2, "state": "lost"}
    assert "NameError" in tools.call("eval", {"code": "x", "session": "again"}).text


def test_a_reset_says_that_the_directory_is_gone(tools: Tools, broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with Client(broker.endpoint, start=False) as client:
        client.new("astray", cwd=str(tmp_path / "gone"), cwd_needed=False)
    (tmp_path / "gone").rmdir()
    assert "has no working directory" in tools.call("reset", {"session": "astray"}).text
    with toolset("agentrepl", endpoint=broker.endpoint) as others:
        assert "has no working directory" in others.call("reset", {"session": "astray"}).text


def test_sessions_are_opened_listed_and_closed(tools: Tools) -> None:
    assert tools.call("sessions", {"action": "new", "session": "open", "cwd": "/tmp"}).structured["created"] is True
    assert tools.call("sessions", {"action": "new", "session": "open"}).structured["created"] is False
    assert "open: idle, python, epoch 1, 0 evals, opened by loop, in /tmp" in tools.call("sessions", {}).text
    assert not tools.call("sessions", {"action": "close", "session": "open"}).error
    closed = tools.call("sessions", {"action": "close", "session": "open"})
    assert closed.structured["status"] == "session-not-found"

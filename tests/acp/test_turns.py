"""One prompt: what it shows while it runs, how it ends, and what it may say instead of code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acp_kit import Agent, content_of
from kit import BrokerProcess, wait_until


def test_a_prompt_gives_its_value_and_ends(agent: Agent, session: str) -> None:
    turn = agent.prompt(session, "6*7")
    assert (turn.stop, turn.text) == ("end_turn", "42")
    assert turn.kinds == ["session_info_update", "tool_call", "tool_call_update", "agent_message_chunk"]
    assert turn.sessions == {session}
    assert turn.updates[1] == {
        "sessionUpdate": "tool_call",
        "toolCallId": turn.tool["toolCallId"],
        "title": "6*7",
        "kind": "execute",
        "status": "in_progress",
        "rawInput": {"code": "6*7"},
    }
    raw = turn.tool["rawOutput"]
    assert (raw["value"], raw["status"], raw["state"], raw["epoch"], raw["eval-id"]) == ("42", ["done"], "kept", 1, 1)


def test_variables_stay_between_prompts(agent: Agent, session: str) -> None:
    assert agent.prompt(session, "x = 41").text == ""
    assert agent.prompt(session, "x + 1").text == "42"


def test_output_is_streamed_while_the_code_runs(agent: Agent, session: str) -> None:
    name = agent.send_prompt(
        session, "import sys\nprint('on', flush=True)\nsys.stderr.write('err\\n')\nimport time; time.sleep(30)"
    )
    agent.until(lambda message: "on\nerr\n" in content_of(message))
    assert not [each for each in agent.messages[-3:] if each.get("id") == name]
    agent.cancel(session)
    assert agent.turn(name).stop == "cancelled"


def test_all_output_is_in_the_tool_call_at_its_end(agent: Agent, session: str) -> None:
    turn = agent.prompt(session, "for i in range(3): print(i)\n'end'")
    assert (turn.output, turn.text) == ("```\n0\n1\n2\n```", "'end'")


def test_much_output_is_bounded_in_every_update(agent: Agent, session: str) -> None:
    turn = agent.prompt(session, "for i in range(40_000): print('line', i)")
    assert turn.tool["status"] == "completed"
    assert max(len(json.dumps(each)) for each in turn.updates) < 100_000
    assert "line 0\n" in turn.output
    assert "line 39999\n" in turn.output
    assert "characters not shown" in turn.output


def test_an_exception_is_content_and_the_turn_ends(agent: Agent, session: str) -> None:
    turn = agent.prompt(session, "print('before')\n1/0")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert turn.text == "ZeroDivisionError: division by zero"
    assert "before\n" in turn.output
    assert "Traceback" in turn.output
    assert turn.tool["rawOutput"]["ex"]["type"] == "ZeroDivisionError"


def test_a_death_of_the_interpreter_is_content_and_says_that_state_is_lost(agent: Agent, session: str) -> None:
    agent.prompt(session, "x = 1")
    turn = agent.prompt(session, "import os; os.abort()")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert "killed by SIGABRT" in turn.text
    assert "Earlier variables are lost" in turn.text
    assert agent.prompt(session, "1").text == "1"


def test_an_eval_in_a_worker_that_was_lost_before_says_so_once(
    agent: Agent, session: str, acp_broker: BrokerProcess
) -> None:
    agent.prompt(session, "import os, threading\nthreading.Timer(0.05, os.abort).start()")
    with acp_broker.wire() as wire:

        def epoch() -> int:
            return next(each["epoch"] for each in wire.ask("ls-sessions")["sessions"] if each["name"] == session)

        wait_until(lambda: epoch() > 1, "the worker is lost")
    assert "Earlier variables are lost" in agent.prompt(session, "2").text
    assert agent.prompt(session, "3").text == "3"


def test_an_exit_is_content_and_says_that_the_session_stays(agent: Agent, session: str) -> None:
    turn = agent.prompt(session, "import sys; sys.exit(3)")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert "SystemExit: 3" in turn.text
    assert "ends the eval, not the session" in turn.text


def test_code_gets_no_input_and_is_told_why(agent: Agent, session: str) -> None:
    turn = agent.prompt(session, "input()")
    assert turn.tool["status"] == "failed"
    assert "gets no input" in turn.text


def test_a_second_prompt_while_one_runs_is_refused_and_does_not_touch_the_first(agent: Agent, session: str) -> None:
    first = agent.send_prompt(session, "print('on'); import time; time.sleep(0.3); 'first'")
    agent.until_running()
    error = agent.error("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "2"}])
    assert (error["code"], error["message"]) == (-32602, "a turn is already running")
    turn = agent.turn(first)
    assert (turn.stop, turn.text) == ("end_turn", "'first'")


def test_two_prompts_in_one_write_are_one_turn_and_one_refusal(agent: Agent, session: str) -> None:
    ask = {"jsonrpc": "2.0", "method": "session/prompt"}
    params = {"sessionId": session, "prompt": [{"type": "text", "text": "1"}]}
    agent.methods |= {"a": "session/prompt", "b": "session/prompt"}
    agent.raw(b"".join(json.dumps({**ask, "id": each, "params": params}).encode() + b"\n" for each in "ab"))
    assert agent.reply("b")["error"]["message"] == "a turn is already running"
    assert agent.turn("a").stop == "end_turn"


def test_sessions_run_beside_each_other(agent: Agent, session: str) -> None:
    other = agent.new()
    slow = agent.send_prompt(session, "print('on'); import time; time.sleep(30)")
    agent.until_running()
    assert agent.prompt(other, "6*7").text == "42"
    agent.cancel(session)
    assert agent.turn(slow).stop == "cancelled"
    agent.call("session/close", sessionId=other)


def test_code_that_waits_for_another_client_says_so(agent: Agent, session: str, acp_broker: BrokerProcess) -> None:
    agent.prompt(session, "1")
    with acp_broker.wire() as wire:
        running = wire.send("eval", session=session, code="print('on'); import time; time.sleep(30)")
        wire.receive()
        name = agent.send_prompt(session, "'mine'")
        agent.until(lambda message: "queued behind 1 eval" in content_of(message))
        wire.ask("interrupt", session=session)
        wire.answer(running)
    assert agent.turn(name).text == "'mine'"


@pytest.mark.parametrize("link", [{"type": "resource_link", "name": "a", "uri": "file:///a"}])
def test_a_resource_link_is_accepted_and_said_to_be_left_out(agent: Agent, session: str, link: dict[str, str]) -> None:
    answer = agent.turn(
        agent.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "1"}, link]})
    )
    assert answer.stop == "end_turn"
    assert "1 linked resource ignored" in answer.text
    assert answer.text.endswith("1")


def test_texts_of_a_prompt_are_lines_of_one_code(agent: Agent, session: str) -> None:
    blocks = [{"type": "text", "text": "x = 1"}, {"type": "text", "text": "x + 1"}]
    assert agent.turn(agent.ask("session/prompt", {"sessionId": session, "prompt": blocks})).text == "2"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "a/b"},
        {"type": "resource", "resource": {"uri": "a:b", "text": "c"}},
        {"type": "text"},
        {"type": "text", "text": 3},
        {"type": "new"},
        {},
        {"type": None},
    ],
)
def test_content_that_was_not_offered_is_refused_before_anything_runs(agent: Agent, session: str, block: Any) -> None:
    error = agent.error("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "1"}, block])
    assert (error["code"], error["data"]["field"]) == (-32602, "prompt[1]")
    assert agent.prompt(session, "/jobs").text == "Nothing has been run in this session yet."


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_an_empty_prompt_runs_nothing(agent: Agent, session: str, text: str) -> None:
    turn = agent.prompt(session, text)
    assert (turn.stop, turn.text) == ("end_turn", "Nothing to run.")


def test_meta_is_accepted_and_overrides_nothing(agent: Agent, session: str) -> None:
    other = agent.new()
    agent.prompt(other, "who = 'other'")
    agent.prompt(session, "who = 'mine'")
    turn = agent.prompt(
        session, "who", _meta={"session_id": other, "sessionId": other, "prompt": [], "traceparent": "x"}
    )
    assert "mine" in turn.text
    assert turn.sessions == {session}
    agent.call("session/close", sessionId=other)


def test_text_that_markdown_would_change_is_fenced(agent: Agent, session: str) -> None:
    assert agent.prompt(session, "__name__").text == "```\n'__main__'\n```"
    assert agent.prompt(session, "'a`b```c'").text == "````\n'a`b```c'\n````"


def test_the_first_prompt_gives_the_title_and_later_ones_leave_it(agent: Agent, session: str) -> None:
    first = agent.prompt(session, "\n  total = 1  # of all\nmore = 2")
    info = next(each for each in first.updates if each["sessionUpdate"] == "session_info_update")
    assert info["title"] == "total = 1 # of all"
    assert "session_info_update" not in agent.prompt(session, "1").kinds


def test_a_title_is_never_empty_nor_long(agent: Agent, session: str) -> None:
    assert len(agent.prompt(session, "x = '" + "a" * 500 + "'").tool["title"]) == 60
    assert agent.prompt(session, "\n\n  1").tool["title"] == "1"


def test_code_over_the_brokers_bound_is_told_and_costs_no_connection(agent: Agent, session: str) -> None:
    agent.prompt(session, "x = 1")
    turn = agent.prompt(session, "'" + "a" * 2_000_000 + "'")
    assert (turn.stop, turn.tool) == ("end_turn", {})  # refused before a tool call is opened
    assert "max-message-bytes" in turn.text
    assert agent.prompt(session, "x").text == "1"


def test_commands_look_and_change(agent: Agent, session: str) -> None:
    agent.prompt(session, "x = 5\nprint('hello')")
    assert "x: int = 5" in agent.prompt(session, "/vars").text
    assert "1: done" in agent.prompt(session, "/jobs").text
    assert "hello" in agent.prompt(session, "/read 1").text
    assert "runtime: python" in agent.prompt(session, "/info").text
    assert session in agent.prompt(session, "/sessions").text
    assert "nothing is running" in agent.prompt(session, "/interrupt").text
    assert "deleted 1" in agent.prompt(session, "/clear").text
    assert agent.prompt(session, "/vars").text == "no variables"
    assert "epoch 2" in agent.prompt(session, "/reset").text
    assert "/reset" in agent.prompt(session, "/help").text


def test_a_command_that_is_not_known_lists_those_that_are(agent: Agent, session: str) -> None:
    turn = agent.prompt(session, "/frobnicate now")
    assert turn.text.startswith("Unknown command /frobnicate. Commands: /help")
    assert agent.prompt(session, "/read x").text.startswith("Pass an eval number")
    assert agent.prompt(session, "/vars").text == "Nothing has been run in this session yet."


@pytest.mark.parametrize("code", [" /help", "/usr/bin/env", "/re/.test(x)", "//", "/1"])
def test_what_only_looks_like_a_command_is_run_as_code(agent: Agent, session: str, code: str) -> None:
    assert "SyntaxError" in agent.prompt(session, code).text or "IndentationError" in agent.prompt(session, code).text

"""Ask mode: nothing runs without a yes that is clear and in time."""

from __future__ import annotations

from typing import Any

import pytest

from acp_kit import Agent, Start

ALLOW = {"outcome": {"outcome": "selected", "optionId": "allow"}}
REJECT = {"outcome": {"outcome": "selected", "optionId": "reject"}}


@pytest.fixture
def asking(agent: Agent, session: str) -> str:
    """A session in ask mode."""
    agent.result("session/set_mode", sessionId=session, modeId="ask")
    agent.update("config_option_update")
    return session


def test_it_is_asked_with_a_negative_id_the_code_and_two_options(agent: Agent, asking: str) -> None:
    name = agent.send_prompt(asking, "ran = 1")
    request = agent.permission()
    params = request["params"]
    assert request["id"] < 0
    assert params["sessionId"] == asking
    assert [(each["optionId"], each["kind"]) for each in params["options"]] == [
        ("allow", "allow_once"),
        ("reject", "reject_once"),
    ]
    tool = params["toolCall"]
    assert (tool["status"], tool["kind"], tool["rawInput"]) == ("pending", "execute", {"code": "ran = 1"})
    assert "ran = 1" in tool["content"][0]["content"]["text"]
    shown = next(each["update"] for each in agent.updates[::-1] if each["update"]["sessionUpdate"] == "tool_call")
    assert (shown["toolCallId"], shown["status"]) == (tool["toolCallId"], "pending")
    agent.respond(request["id"], ALLOW)
    turn = agent.turn(name)
    assert [each.get("status") for each in turn.updates] == ["in_progress", "completed"]
    assert agent_runs(agent, asking, "ran").startswith("1")


def agent_runs(agent: Agent, session: str, code: str) -> str:
    """Return the result of code that is allowed."""
    agent.on_permission = lambda _: ALLOW
    try:
        return agent.prompt(session, code).text
    finally:
        agent.on_permission = None


def test_an_answer_that_is_no_stops_it_and_the_turn_ends(agent: Agent, asking: str) -> None:
    agent.on_permission = lambda _: REJECT
    turn = agent.prompt(asking, "ran = 1")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert turn.text == "Not run: permission was refused."
    assert "NameError" in agent_runs(agent, asking, "ran")


@pytest.mark.parametrize(
    "answer",
    [
        {"outcome": {"outcome": "cancelled"}},
        {"outcome": {"outcome": "selected", "optionId": "allow_always"}},
        {"outcome": {"outcome": "selected"}},
        {"outcome": {"outcome": "selected", "optionId": True}},
        {},
        None,
        [],
        "allow",
        {"outcome": "allow"},
        {"outcome": None},
        {"outcome": {"optionId": "allow"}},
        {"optionId": "allow"},
        {"outcome": {"outcome": "Selected", "optionId": "allow"}},
    ],
)
def test_whatever_is_no_clear_yes_is_a_no(agent: Agent, asking: str, answer: Any) -> None:
    agent.on_permission = lambda _: answer
    turn = agent.prompt(asking, "ran = 1")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert turn.text.startswith("Not run: ")
    assert "NameError" in agent_runs(agent, asking, "ran")


def test_an_error_as_the_answer_is_a_no(agent: Agent, asking: str) -> None:
    name = agent.send_prompt(asking, "ran = 1")
    asked = agent.permission()["id"]
    agent.send({"jsonrpc": "2.0", "id": asked, "error": {"code": -32603, "message": "no"}})
    assert agent.turn(name).text.startswith("Not run: ")
    assert "NameError" in agent_runs(agent, asking, "ran")


def test_a_client_that_never_answers_is_a_no_after_the_agents_own_deadline(start: Start) -> None:
    agent = start("--permission-timeout", "200ms", "--mode", "ask")
    session = agent.new()
    name = agent.send_prompt(session, "ran = 1")
    asked = agent.permission()["id"]
    turn = agent.turn(name)
    assert (turn.stop, turn.text) == ("end_turn", "Not run: no permission within the time limit.")
    agent.respond(asked, ALLOW)  # too late
    name = agent.send_prompt(session, "ran")
    assert agent.permission()["id"] < asked
    assert agent.turn(name).text.startswith("Not run")
    assert agent.end() == 0
    assert "dropped an unexpected response" in agent.stderr_text


def test_a_cancel_while_it_is_asked_ends_the_turn_and_a_late_yes_runs_nothing(agent: Agent, asking: str) -> None:
    name = agent.send_prompt(asking, "ran = 1")
    asked = agent.permission()["id"]
    agent.cancel(asking)
    turn = agent.turn(name)
    assert (turn.stop, turn.tool["status"]) == ("cancelled", "failed")
    agent.respond(asked, ALLOW)
    assert "NameError" in agent_runs(agent, asking, "ran")


def test_a_yes_and_a_cancel_in_one_write_are_a_cancel(agent: Agent, asking: str) -> None:
    name = agent.send_prompt(asking, "ran = 1")
    asked = agent.permission()["id"]
    agent.cancel(asking)
    agent.respond(asked, ALLOW)
    assert agent.turn(name).stop == "cancelled"
    assert "NameError" in agent_runs(agent, asking, "ran")


def test_a_yes_counts_for_one_eval_only(agent: Agent, asking: str) -> None:
    assert agent_runs(agent, asking, "1").startswith("1")
    name = agent.send_prompt(asking, "2")
    agent.respond(agent.permission()["id"], REJECT)
    assert agent.turn(name).text.startswith("Not run")


def test_a_mode_that_became_plan_while_it_was_asked_holds(agent: Agent, asking: str) -> None:
    name = agent.send_prompt(asking, "ran = 1")
    asked = agent.permission()["id"]
    agent.result("session/set_mode", sessionId=asking, modeId="plan")
    agent.respond(asked, ALLOW)
    assert agent.turn(name).text == "Not run: the session is in plan mode now."
    agent.result("session/set_mode", sessionId=asking, modeId="auto")
    assert "NameError" in agent.prompt(asking, "ran").text


def test_other_sessions_and_requests_go_on_while_it_is_asked(agent: Agent, asking: str) -> None:
    name = agent.send_prompt(asking, "1")
    asked = agent.permission()["id"]
    other = agent.new()
    assert agent.prompt(other, "6*7").text == "42"
    agent.call("session/close", sessionId=other)
    agent.respond(asked, ALLOW)
    assert agent.turn(name).text == "1"


def test_commands_that_change_ask_and_those_that_look_do_not(agent: Agent, asking: str) -> None:
    assert agent_runs(agent, asking, "x = 1") == ""
    assert "x: int = 1" in agent.prompt(asking, "/vars").text
    name = agent.send_prompt(asking, "/reset")
    request = agent.permission()
    assert request["params"]["toolCall"]["title"] == "/reset"
    agent.respond(request["id"], REJECT)
    assert agent.turn(name).text == "Not run: permission was refused."
    assert agent_runs(agent, asking, "x").startswith("1")
    assert "epoch 2" in agent_runs(agent, asking, "/reset")


def test_the_decision_is_in_the_transcript(start: Start, tmp_path: Any) -> None:
    agent = start("--mode", "ask")
    session = agent.new()
    agent.on_permission = lambda _: REJECT
    agent.prompt(session, "1")
    agent.on_permission = lambda _: ALLOW
    agent.prompt(session, "1")
    text = (tmp_path / "acp" / f"{session}.jsonl").read_text()
    assert '"permission":"rejected"' in text
    assert '"permission":"allowed"' in text
    agent.call("session/delete", sessionId=session)


def test_the_client_dying_while_it_is_asked_runs_nothing(start: Start) -> None:
    agent = start("--mode", "ask")
    session = agent.new()
    agent.send_prompt(session, "ran = 1")
    agent.permission()
    assert agent.end() == 0
    second = start()
    second.result("session/resume", sessionId=session, cwd="/tmp")
    second.result("session/set_mode", sessionId=session, modeId="auto")
    assert "NameError" in second.prompt(session, "ran").text
    second.call("session/delete", sessionId=session)

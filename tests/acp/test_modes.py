"""Modes and config options: always told whole, kept in step, refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from acp_kit import Agent, Message, Start
from kit import BrokerProcess


def values(options: list[Message]) -> dict[str, Any]:
    return {each["id"]: each["currentValue"] for each in options}


def test_set_mode_answers_and_then_tells_mode_and_options(agent: Agent, session: str) -> None:
    name = agent.ask("session/set_mode", {"sessionId": session, "modeId": "ask"})
    assert agent.next() == {"jsonrpc": "2.0", "id": name, "result": {}}
    mode, option = agent.next()["params"]["update"], agent.next()["params"]["update"]
    assert mode == {"sessionUpdate": "current_mode_update", "currentModeId": "ask"}
    assert option["sessionUpdate"] == "config_option_update"
    assert values(option["configOptions"]) == {"mode": "ask", "runtime": "python", "session": "own"}


def test_the_mode_option_does_the_same_and_answers_with_the_whole_list(agent: Agent, session: str) -> None:
    got = agent.result("session/set_config_option", sessionId=session, configId="mode", value="plan")
    assert values(got["configOptions"]) == {"mode": "plan", "runtime": "python", "session": "own"}
    assert agent.update("current_mode_update")["currentModeId"] == "plan"
    assert all(each["currentValue"] in [option["value"] for option in each["options"]] for each in got["configOptions"])
    assert next(each for each in got["configOptions"] if each["id"] == "mode")["category"] == "mode"


def test_unknown_modes_options_and_values_are_refused_by_name(agent: Agent, session: str) -> None:
    error = agent.error("session/set_mode", sessionId=session, modeId="everything")
    assert (error["code"], error["data"]) == (-32602, {"mode": "everything"})
    error = agent.error("session/set_config_option", sessionId=session, configId="model", value="x")
    assert (error["code"], error["data"]) == (-32602, {"configId": "model"})
    for option in ("mode", "runtime", "session"):
        error = agent.error("session/set_config_option", sessionId=session, configId=option, value="nothing-like-it")
        assert (error["code"], error["data"]["configId"], error["data"]["value"]) == (-32602, option, "nothing-like-it")
    error = agent.error("session/set_config_option", sessionId=session, configId="mode", type="boolean", value=True)
    assert error["code"] == -32602
    assert agent.result("session/resume", sessionId=session, cwd="/tmp")["modes"]["currentModeId"] == "auto"


def test_plan_mode_runs_no_code_and_says_so(agent: Agent, session: str) -> None:
    agent.result("session/set_mode", sessionId=session, modeId="plan")
    turn = agent.prompt(session, "ran = 1")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert "plan mode" in turn.text
    agent.result("session/set_mode", sessionId=session, modeId="auto")
    assert "NameError" in agent.prompt(session, "ran").text


def test_plan_mode_lets_commands_look_and_not_change(agent: Agent, session: str, acp_broker: BrokerProcess) -> None:
    agent.prompt(session, "x = 5")
    agent.result("session/set_mode", sessionId=session, modeId="plan")
    assert "x: int = 5" in agent.prompt(session, "/vars").text
    for looks in ("/info", "/jobs", "/read 1", "/sessions", "/help"):
        assert "plan mode" not in agent.prompt(session, looks).text, looks
    for changes in ("/reset", "/clear", "/interrupt"):
        turn = agent.prompt(session, changes)
        assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
        assert "plan mode" in turn.text
    with acp_broker.wire() as wire:
        entry = next(each for each in wire.ask("ls-sessions")["sessions"] if each["name"] == session)
    assert (entry["epoch"], entry["eval-count"]) == (1, 1)


def test_meta_narrows_one_turn_and_never_widens(agent: Agent, session: str) -> None:
    turn = agent.prompt(session, "1", _meta={"replctl": {"mode": "plan"}})
    assert "plan mode" in turn.text
    assert agent.prompt(session, "1").text == "1"
    agent.result("session/set_mode", sessionId=session, modeId="plan")
    assert "plan mode" in agent.prompt(session, "1", _meta={"replctl": {"mode": "auto"}}).text
    for nonsense in ({"replctl": {"mode": 7}}, {"replctl": "plan"}, {"replctl": {"mode": "everything"}}, {}, [], "x"):
        assert "plan mode" in agent.prompt(session, "1", _meta=nonsense).text


def test_pixirs_permission_mode_narrows_one_turn_and_never_widens(agent: Agent, session: str) -> None:
    assert "plan mode" in agent.prompt(session, "1", _meta={"permission_mode": "read_only"}).text
    assert agent.prompt(session, "1", _meta={"permission_mode": "auto"}).text == "1"
    agent.result("session/set_mode", sessionId=session, modeId="plan")
    for wide in ("auto", "ask", "everything", 7):
        assert "plan mode" in agent.prompt(session, "1", _meta={"permission_mode": wide}).text
    assert (
        "plan mode" in agent.prompt(session, "1", _meta={"permission_mode": "auto", "replctl": {"mode": "auto"}}).text
    )


def test_a_mode_that_was_set_before_a_prompt_holds_for_it_however_fast_they_come(agent: Agent, session: str) -> None:
    setting = agent.ask("session/set_mode", {"sessionId": session, "modeId": "plan"})
    assert "plan mode" in agent.turn(agent.send_prompt(session, "1")).text
    assert any(each.get("id") == setting for each in agent.messages)
    agent.ask("session/set_config_option", {"sessionId": session, "configId": "mode", "value": "auto"})
    assert agent.turn(agent.send_prompt(session, "1")).text == "1"


def test_a_prompt_waits_for_the_session_that_was_chosen_before_it(
    agent: Agent, session: str, acp_broker: BrokerProcess
) -> None:
    with acp_broker.wire() as wire:
        wire.run("x = 'theirs'", "picked")
        agent.ask("session/set_config_option", {"sessionId": session, "configId": "session", "value": "picked"})
        assert "theirs" in agent.turn(agent.send_prompt(session, "x")).text
        wire.ask("close", session="picked")


def test_the_mode_of_new_sessions_can_be_chosen(start: Start) -> None:
    agent = start("--mode", "plan")
    assert agent.result("session/new", cwd="/tmp")["modes"]["currentModeId"] == "plan"


def test_the_live_sessions_can_be_chosen_from(agent: Agent, acp_broker: BrokerProcess) -> None:
    with acp_broker.wire() as wire:
        wire.run("1", "visible")
        made = agent.result("session/new", cwd="/tmp")
        choice = next(each for each in made["configOptions"] if each["id"] == "session")
        assert "visible" in [each["value"] for each in choice["options"]]
        assert choice["options"][0] == {"value": "own", "name": "Own", "description": made["sessionId"]}
        wire.ask("close", session="visible")
    agent.call("session/close", sessionId=made["sessionId"])


def test_a_mode_that_cannot_be_written_down_is_not_in_force(start: Start, tmp_path: Any) -> None:
    agent = start()
    session = agent.new()
    record = tmp_path / "acp" / f"{session}.json"
    record.unlink()
    record.mkdir()
    error = agent.error("session/set_mode", sessionId=session, modeId="ask")
    assert (error["code"], error["data"]["kind"]) == (-32603, "record")
    assert agent.prompt(session, "6*7").text == "42"


@pytest.mark.parametrize("flag", ["--mode=all", "--permission-timeout=soon", "--agent=a b", "--endpoint=nonsense"])
def test_a_flag_that_cannot_be_used_is_a_usage_error(start: Start, flag: str) -> None:
    agent = start(flag)
    assert agent.line() is None
    assert agent.process.wait(20) == 2

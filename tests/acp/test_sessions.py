"""Sessions: made, found again by another process, listed, closed, forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from acp_kit import Agent, Start
from kit import BrokerProcess, Wire

HOSTILE = ["../../../outside;PWN", "a/b", "..", "", "a" * 201, "a\0b", "é", "acp-\n"]


def texts(updates: list[dict[str, Any]], kind: str) -> list[str]:
    return [each["update"]["content"]["text"] for each in updates if each["update"]["sessionUpdate"] == kind]


def evals(wire: Wire, session: str) -> int:
    return next(each["eval-count"] for each in wire.ask("ls-sessions")["sessions"] if each["name"] == session)


def test_a_new_session_has_an_id_that_cannot_be_guessed(agent: Agent) -> None:
    ids = {agent.new() for _ in range(5)}
    assert len(ids) == 5
    assert all(each.startswith("acp-") and len(each) == 36 for each in ids)
    for each in ids:
        agent.call("session/close", sessionId=each)


def test_a_new_session_tells_its_modes_options_and_commands(agent: Agent) -> None:
    made = agent.result("session/new", cwd="/tmp", mcpServers=[])
    assert made["modes"]["currentModeId"] == "auto"
    assert [each["id"] for each in made["modes"]["availableModes"]] == ["auto", "ask", "plan"]
    assert [each["id"] for each in made["configOptions"]] == ["mode", "runtime", "session"]
    assert all(each["type"] == "select" for each in made["configOptions"])
    assert all({"name", "value"} <= set(option) for each in made["configOptions"] for option in each["options"])
    result = agent.update("available_commands_update")["availableCommands"]
    assert [each["name"] for each in result] == [
        "help",
        "vars",
        "info",
        "jobs",
        "read",
        "sessions",
        "interrupt",
        "undo",
        "diff",
        "branch",
        "allow-hosts",
        "clear",
        "reset",
    ]
    agent.call("session/close", sessionId=made["sessionId"])


@pytest.mark.parametrize("params", [{}, {"cwd": None}, {"cwd": 3}, {"cwd": "relative"}, {"cwd": ""}, {"cwd": "./a"}])
def test_a_session_needs_an_absolute_directory(agent: Agent, params: dict[str, Any]) -> None:
    assert agent.error("session/new", mcpServers=[], **params)["code"] == -32602


def test_a_relative_directory_is_told_as_that(agent: Agent) -> None:
    for method in ("session/new", "session/load", "session/resume"):
        error = agent.error(method, cwd="here", sessionId="acp-x", mcpServers=[])
        assert (error["code"], error["message"]) == (-32602, "cwd must be an absolute path")


def test_mcp_servers_may_be_missing(agent: Agent) -> None:
    made = agent.result("session/new", cwd="/tmp")
    assert agent.result("session/close", sessionId=made["sessionId"]) == {}


def test_code_runs_in_the_sessions_directory(agent: Agent, tmp_path: Path) -> None:
    session = agent.new(str(tmp_path))
    assert str(tmp_path) in agent.prompt(session, "import os; os.getcwd()").text
    agent.call("session/close", sessionId=session)


def test_a_directory_that_is_not_there_is_told_beside_the_first_value(agent: Agent) -> None:
    session = agent.new("/no/such/directory")
    turn = agent.prompt(session, "1")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "completed")
    assert "the session has no working directory" in turn.text
    assert "/no/such/directory" in turn.text
    agent.call("session/close", sessionId=session)


def test_a_session_that_ran_nothing_costs_the_broker_nothing(agent: Agent, acp_broker: BrokerProcess) -> None:
    session = agent.new()
    with acp_broker.wire() as wire:
        assert session not in [each["name"] for each in wire.ask("ls-sessions")["sessions"]]
    agent.call("session/close", sessionId=session)


def test_the_broker_session_has_the_same_name_and_any_client_can_use_it(
    agent: Agent, session: str, acp_broker: BrokerProcess
) -> None:
    agent.prompt(session, "x = 41")
    with acp_broker.wire() as wire:
        assert wire.run("x + 1", session).value == "42"


@pytest.mark.parametrize("missing", ["acp-" + "0" * 32, "a" * 200])
def test_an_unknown_session_is_not_found(agent: Agent, missing: str) -> None:
    assert agent.result("session/delete", sessionId=missing) == {}
    more = {"prompt": [], "cwd": "/tmp", "modeId": "auto", "configId": "mode", "value": "auto"}
    for method in ("prompt", "load", "resume", "close", "set_mode", "set_config_option"):
        error = agent.error(f"session/{method}", sessionId=missing, **more)
        assert (error["code"], error["data"]) == (-32002, {"sessionId": missing}), method


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_id_is_invalid_is_not_repeated_and_touches_no_file(agent: Agent, hostile: str) -> None:
    before = sorted(Path("/tmp").glob("outside*"))
    for method in ("session/load", "session/resume", "session/delete", "session/close"):
        error = agent.error(method, sessionId=hostile, cwd="/tmp", mcpServers=[])
        assert error["code"] == -32602
        assert error["data"]["field"] == "sessionId"
        assert not hostile or hostile not in json.dumps(error)
    assert sorted(Path("/tmp").glob("outside*")) == before


def test_load_in_another_process_replays_and_then_answers(start: Start) -> None:
    first = start()
    session = first.new()
    first.prompt(session, "print('out'); 6*7")
    first.prompt(session, "1/0")
    first.prompt(session, "/vars")
    assert first.end() == 0

    second = start()
    answer = second.result("session/load", sessionId=session, cwd="/tmp", mcpServers=[])
    assert texts(second.updates, "user_message_chunk") == ["print('out'); 6*7", "1/0", "/vars"]
    result = texts(second.updates, "agent_message_chunk")
    assert result[:3] == ["42", "ZeroDivisionError: division by zero", "no variables"]
    assert "is still running" in result[3]
    tools = [each["update"] for each in second.updates if each["update"]["sessionUpdate"] == "tool_call"]
    assert [each["status"] for each in tools] == ["completed", "failed"]
    assert tools[0]["content"][0]["content"]["text"] == "```\nout\n```"
    assert tools[0]["rawInput"] == {"code": "print('out'); 6*7"}
    assert answer["_meta"] == {"replctl": {"state": "kept", "session": session, "cwd": "/tmp", "epoch": 1}}
    assert {each["sessionId"] for each in second.updates} == {session}
    assert second.update("available_commands_update")["availableCommands"]
    second.call("session/delete", sessionId=session)


def test_resume_replays_nothing_and_the_variables_are_there(start: Start) -> None:
    first = start()
    session = first.new()
    first.prompt(session, "x = 41")
    assert first.end() == 0
    second = start()
    answer = second.result("session/resume", sessionId=session, cwd="/tmp")
    assert second.updates == []
    assert answer["_meta"]["replctl"]["state"] == "kept"
    assert answer["modes"]["currentModeId"] == "auto"
    assert second.prompt(session, "x + 1").text == "42"
    second.call("session/delete", sessionId=session)


def test_a_session_that_another_client_made_first_counts_as_kept(start: Start, acp_broker: BrokerProcess) -> None:
    first = start()
    session = first.new()
    with acp_broker.wire() as wire:
        wire.run("x = 41", session)
    assert first.prompt(session, "x + 1").text == "42"
    assert first.end() == 0
    second = start()
    resumed = second.result("session/resume", sessionId=session, cwd="/tmp")
    assert resumed["_meta"]["replctl"]["state"] == "kept"
    second.call("session/delete", sessionId=session)


@pytest.mark.parametrize("how", ["close", "reset", "kill"])
def test_lost_variables_are_told_on_load_and_on_resume(start: Start, acp_broker: BrokerProcess, how: str) -> None:
    first = start()
    session = first.new()
    first.prompt(session, "x = 1")
    assert first.end() == 0
    with acp_broker.wire() as wire:
        if how == "kill":
            wire.run("import os; os.abort()", session)
        else:
            wire.ask(how, session=session)
    second = start()
    resumed = second.result("session/resume", sessionId=session, cwd="/tmp")
    assert resumed["_meta"]["replctl"]["state"] == "lost"
    assert second.result("session/load", sessionId=session, cwd="/tmp")["_meta"]["replctl"]["state"] == "lost"
    assert "are lost" in texts(second.updates, "agent_message_chunk")[-1]
    turn = second.prompt(session, "x")
    assert "NameError" in turn.text
    second.call("session/delete", sessionId=session)


def test_a_session_that_went_while_it_was_open_is_told_with_the_next_eval(
    agent: Agent, session: str, acp_broker: BrokerProcess
) -> None:
    agent.prompt(session, "x = 1")
    with acp_broker.wire() as wire:
        wire.ask("close", session=session)
    assert "earlier variables are lost" in agent.prompt(session, "2").text
    with acp_broker.wire() as wire:
        wire.run("import os; os.abort()", session)
    turn = agent.prompt(session, "3")
    assert turn.text.startswith("3")


def test_a_cancelled_turn_is_replayed_without_its_partial_output(start: Start) -> None:
    agent = start()
    session = agent.new()
    name = agent.send_prompt(session, "print('on'); import time; time.sleep(30)")
    agent.until_running()
    agent.cancel(session)
    assert agent.turn(name).stop == "cancelled"
    before = len(agent.updates)
    agent.result("session/load", sessionId=session, cwd="/tmp")
    tool = next(each["update"] for each in agent.updates[before:] if each["update"]["sessionUpdate"] == "tool_call")
    assert (tool["status"], tool["content"]) == ("failed", [])
    agent.call("session/delete", sessionId=session)


def test_a_turn_whose_adapter_was_killed_is_replayed_as_unknown(start: Start) -> None:
    first = start()
    session = first.new()
    first.send_prompt(session, "print('on'); import time; time.sleep(0.3); y = 7")
    first.until_running()
    first.process.kill()
    second = start()
    second.result("session/load", sessionId=session, cwd="/tmp")
    assert "is unknown" in "".join(texts(second.updates, "agent_message_chunk"))
    assert second.prompt(session, "y").text == "7"  # the eval went on without its client
    second.call("session/delete", sessionId=session)


def test_a_record_that_cannot_be_read_is_not_opened_with_a_guess(start: Start, tmp_path: Path) -> None:
    agent = start()
    session = agent.new()
    assert agent.end() == 0
    record = tmp_path / "acp" / f"{session}.json"
    for broken in ("", "{", '{"v":1}', record.read_text().replace('"auto"', '"everything"')):
        record.write_text(broken)
        second = start()
        for method in ("session/load", "session/resume"):
            error = second.error(method, sessionId=session, cwd="/tmp", mcpServers=[])
            assert (error["code"], error["data"]) == (-32603, {"kind": "record"})
        assert second.error("session/prompt", sessionId=session, prompt=[])["code"] == -32002
        assert second.result("session/list") == {"sessions": []}
        assert second.end() == 0


@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_restored_mode_holds(start: Start, method: str) -> None:
    first = start()
    session = first.new()
    first.result("session/set_mode", sessionId=session, modeId="plan")
    assert first.end() == 0
    second = start()
    assert second.result(method, sessionId=session, cwd="/tmp", mcpServers=[])["modes"]["currentModeId"] == "plan"
    assert second.prompt(session, "1").tool["status"] == "failed"


def test_files_are_the_users_alone(start: Start, tmp_path: Path) -> None:
    agent = start()
    agent.prompt(agent.new(), "1")
    directory = tmp_path / "acp"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in directory.iterdir()} == {0o600}
    assert len(list(directory.iterdir())) == 2


def test_list_has_all_sessions_of_all_processes_and_filters_by_directory(start: Start, tmp_path: Path) -> None:
    first, second = start(), start()
    here, there = first.new("/tmp"), first.new(str(tmp_path))
    other = second.new("/tmp")
    first.prompt(here, "# a title\n1")
    entries = {each["sessionId"]: each for each in second.result("session/list")["sessions"]}
    assert set(entries) == {here, there, other}
    assert (entries[here]["title"], entries[here]["cwd"]) == ("# a title", "/tmp")
    assert entries[there]["title"] is None
    found = second.result("session/list", cwd=str(tmp_path))["sessions"]
    assert [each["sessionId"] for each in found] == [there]
    assert second.result("session/list", cwd="/nowhere") == {"sessions": []}
    assert second.error("session/list", cwd="nowhere")["code"] == -32602
    assert second.error("session/list", cursor="nonsense")["code"] == -32602
    first.call("session/delete", sessionId=here)


def test_list_goes_on_where_a_page_ended(start: Start) -> None:
    agent = start()
    made = [agent.new() for _ in range(105)]
    page = agent.result("session/list")
    assert len(page["sessions"]) == 100
    rest = agent.result("session/list", cursor=page["nextCursor"])
    assert "nextCursor" not in rest
    assert {each["sessionId"] for each in page["sessions"] + rest["sessions"]} == set(made)


def test_close_ends_what_runs_and_frees_the_process(start: Start, acp_broker: BrokerProcess) -> None:
    agent = start()
    session = agent.new()
    name = agent.send_prompt(session, "print('on'); import time; time.sleep(30)")
    agent.until_running()
    closing = agent.ask("session/close", {"sessionId": session})
    assert agent.turn(name).stop == "cancelled"
    assert agent.reply(closing)["result"] == {}
    with acp_broker.wire() as wire:
        assert session not in [each["name"] for each in wire.ask("ls-sessions")["sessions"]]
    assert agent.error("session/prompt", sessionId=session, prompt=[])["code"] == -32002
    assert [each["sessionId"] for each in agent.result("session/list")["sessions"]] == [session]
    assert agent.result("session/resume", sessionId=session, cwd="/tmp")["_meta"]["replctl"]["state"] == "lost"


def test_close_frees_a_session_of_an_earlier_process(start: Start, acp_broker: BrokerProcess) -> None:
    first = start()
    session = first.new()
    first.prompt(session, "1")
    assert first.end() == 0
    assert start().result("session/close", sessionId=session) == {}
    with acp_broker.wire() as wire:
        assert session not in [each["name"] for each in wire.ask("ls-sessions")["sessions"]]


def test_delete_forgets_and_may_be_repeated(start: Start, tmp_path: Path, acp_broker: BrokerProcess) -> None:
    agent = start()
    session = agent.new()
    agent.prompt(session, "1")
    for _ in range(2):
        assert agent.result("session/delete", sessionId=session) == {}
    assert agent.result("session/delete", sessionId="acp-never-was") == {}
    assert agent.result("session/list") == {"sessions": []}
    assert list((tmp_path / "acp").iterdir()) == []
    assert agent.error("session/load", sessionId=session, cwd="/tmp")["code"] == -32002
    with acp_broker.wire() as wire:
        assert session not in [each["name"] for each in wire.ask("ls-sessions")["sessions"]]


def test_a_chosen_session_is_shared_and_outlives_the_acp_session(
    agent: Agent, session: str, acp_broker: BrokerProcess
) -> None:
    with acp_broker.wire() as wire:
        wire.run("x = 'shared'", "common")
        got = agent.result("session/set_config_option", sessionId=session, configId="session", value="common")
        assert next(each for each in got["configOptions"] if each["id"] == "session")["currentValue"] == "common"
        assert "shared" in agent.prompt(session, "x").text
        assert evals(wire, "common") == 2
        agent.call("session/close", sessionId=session)
        assert evals(wire, "common") == 2
        wire.ask("close", session="common")


def test_a_chosen_session_that_has_gone_is_told_and_not_made_anew(
    agent: Agent, session: str, acp_broker: BrokerProcess
) -> None:
    with acp_broker.wire() as wire:
        wire.run("1", "common")
        agent.result("session/set_config_option", sessionId=session, configId="session", value="common")
        wire.ask("close", session="common")
        turn = agent.prompt(session, "x")
        assert turn.stop == "end_turn"
        assert "Session not found: common" in turn.text
        assert "common" not in [each["name"] for each in wire.ask("ls-sessions")["sessions"]]
    agent.result("session/set_config_option", sessionId=session, configId="session", value="own")
    assert agent.prompt(session, "1").text == "1"

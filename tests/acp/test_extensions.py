"""Extensions in an editor: a person's word where a hook wants it, and commands beside our own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from acp_kit import Agent, environ
from ext_kit import SHOUT, config_entry, hook_source, write_extension
from kit import BrokerProcess

ASKS = hook_source("return RequireApproval('Delete?', 'it says rm') if 'rm' in q.code else None")
COMMANDS = (
    f"""
import sys
SHOUT = {SHOUT!r}
"""
    + """
@hookimpl
def replctl_register(register, settings):
    def say(client, session, text):
        return client.eval(f"{text!r}.upper()", session).value
    register(ExtensionCommand(name="say-loud", summary="Say it louder", hint="TEXT", run=say))
    register(ExtensionCommand(name="peek", summary="Looks", run=lambda client, session, text: session, changes=False))
    register(ExtensionCommand(name="fails", summary="Fails", run=lambda client, session, text: 1/0))
    register(ExtensionCommand(name="help", summary="not ours", run=lambda *_: "stolen"))
    register(ExtensionCommand(name="much", run=lambda *_: "z" * 40_000_000))
    def leave(*_):
        raise KeyboardInterrupt
    register(ExtensionCommand(name="leave", run=leave))
    def stay(client, session, text):
        while not pathlib.Path(text).exists():
            time.sleep(0.01)
        return ""
    register(ExtensionCommand(name="stay", run=stay))
    register(Runtime(name="shout", interpreter=lambda: sys.executable, arguments=("-c", SHOUT),
                     reads=(sys.prefix, sys.base_prefix)))
"""
)
Outcome = dict[str, Any]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """An agent of a broker with a hook that asks and commands of an extension."""
    directory = Path(tempfile.mkdtemp(prefix="rpa-", dir="/tmp"))
    texts = {"guard": ASKS, "more": COMMANDS}
    broker = BrokerProcess(
        directory,
        config="".join(config_entry(path=write_extension(tmp_path, name, each)) for name, each in texts.items()),
    )
    found = Agent(environ(tmp_path, broker.endpoint) | {"REPLCTL_CONFIG": str(directory / "config.toml")})
    found.start()
    yield found
    assert found.end() == 0
    assert "Traceback" not in found.stderr_text
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(directory)


def _choose(option: str) -> Outcome:
    return {"outcome": {"outcome": "selected", "optionId": option}}


def test_a_hooks_question_is_a_request_for_permission_and_a_yes_lets_the_code_run(agent: Agent) -> None:
    session = agent.new()
    name = agent.send_prompt(session, "rm = 42; rm")
    request = agent.permission()
    tool = request["params"]["toolCall"]
    assert (tool["title"], tool["status"]) == ("Delete? it says rm", "pending")
    assert tool["rawInput"] == {"code": "rm = 42; rm"}
    agent.respond(request["id"], _choose("allow"))
    turn = agent.turn(name)
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "completed")
    assert "42" in turn.text
    assert "5" in agent.prompt(session, "5").text


@pytest.mark.parametrize("outcome", [_choose("reject"), {"outcome": {"outcome": "cancelled"}}, {"what": 1}])
def test_anything_but_a_clear_yes_is_a_no(agent: Agent, outcome: Outcome) -> None:
    session = agent.new()
    agent.on_permission = lambda _: outcome
    turn = agent.prompt(session, "rm = 1")
    assert (turn.stop, turn.tool["status"]) == ("end_turn", "failed")
    assert turn.text.startswith("Not run: ")
    assert "approval" not in turn.text, "nobody here sends a request of the wire again"
    assert "NameError" in agent.prompt(session, "'r' 'm' in dir() or missing").text


def test_a_cancel_while_a_person_is_asked_ends_the_turn(agent: Agent) -> None:
    session = agent.new()
    name = agent.send_prompt(session, "rm = 1")
    agent.permission()
    agent.cancel(session)
    assert agent.turn(name).stop == "cancelled"
    assert "5" in agent.prompt(session, "5").text


def test_commands_of_extensions_are_listed_and_run(agent: Agent) -> None:
    session: str = agent.result("session/new", cwd="/tmp", mcpServers=[])["sessionId"]
    offered = {each["name"]: each for each in agent.update("available_commands_update")["availableCommands"]}
    assert offered["say-loud"] == {"name": "say-loud", "description": "Say it louder", "input": {"hint": "TEXT"}}
    assert offered["help"]["description"] == "List these commands"
    assert "'HELLO YOU'" in agent.prompt(session, "/say-loud hello you").text
    assert "/say-loud TEXT" in agent.prompt(session, "/help").text
    failed = agent.prompt(session, "/fails")
    assert (failed.stop, failed.tool["status"]) == ("end_turn", "failed")
    assert "extension more/fails: ZeroDivisionError" in failed.text


def test_what_an_extensions_command_does_ends_no_door(agent: Agent, tmp_path: Path) -> None:
    session = agent.new()
    assert "characters left out" in agent.prompt(session, "/much").text
    assert "extension command leave: KeyboardInterrupt" in agent.prompt(session, "/leave").text
    release = tmp_path / "release"
    name = agent.send_prompt(session, f"/stay {release}")
    agent.update("tool_call")
    agent.cancel(session)
    turn = agent.turn(name)
    release.touch()
    assert (turn.stop, turn.text) == ("cancelled", "The command cannot be stopped and continues.")
    assert "5" in agent.prompt(session, "5").text


def test_a_language_of_an_extension_can_be_chosen_and_its_session_is_closed_with_the_others(agent: Agent) -> None:
    session = agent.new()
    answer = agent.result("session/set_config_option", sessionId=session, configId="runtime", value="shout")
    runtime = next(each for each in answer["configOptions"] if each["id"] == "runtime")
    assert runtime["currentValue"] == "shout"
    assert "shout" in [each["value"] for each in runtime["options"]]
    assert "HELLO" in agent.prompt(session, "hello").text
    assert f"{session}-shout: shout" in agent.prompt(session, "/sessions").text
    agent.result("session/close", sessionId=session)
    assert f"{session}-shout" not in agent.prompt(agent.new(), "/sessions").text


def test_plan_mode_has_only_commands_that_look(agent: Agent) -> None:
    session = agent.new()
    agent.prompt(session, "1")
    agent.result("session/set_mode", sessionId=session, modeId="plan")
    assert "plan mode" in agent.prompt(session, "/say-loud x").text
    assert session in agent.prompt(session, "/peek").text

"""Sessions of node and bash: what is no value is not said, and a failed command is."""

from __future__ import annotations

import pytest

from acp_kit import Agent

NODE = pytest.mark.needs_program("node")


def run_codes(agent: Agent, runtime: str, *codes: str) -> list[tuple[str, str]]:
    """The message and the tool call's status of each prompt, in a new session."""
    session = agent.new()
    agent.result("session/set_config_option", sessionId=session, configId="runtime", value=runtime)
    turns = [agent.prompt(session, code) for code in codes]
    agent.call("session/close", sessionId=session)
    return [(turn.text, turn.tool["status"]) for turn in turns]


def test_bash_says_no_zero_and_tells_of_a_command_that_failed(agent: Agent) -> None:
    assert run_codes(agent, "bash", "x=4", "echo $x", "(exit 3)") == [
        ("", "completed"),
        ("", "completed"),
        ("exit status 3", "completed"),
    ]


@NODE
def test_node_says_its_values_and_no_undefined(agent: Agent) -> None:
    assert run_codes(agent, "node", "const x = 4", "x - 4", "console.log(x)", "null") == [
        ("", "completed"),
        ("0", "completed"),
        ("", "completed"),
        ("null", "completed"),
    ]

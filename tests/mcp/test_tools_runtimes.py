"""Node and bash through the tools: a value where the runtime has one, and never a zero that means nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kit import BrokerProcess
from replctl.tools import Tools, ToolSettings, toolset

NODE = pytest.mark.needs_program("node")


@pytest.fixture
def tools(broker: BrokerProcess) -> Iterator[Tools]:
    with toolset(endpoint=broker.endpoint, agent="loop") as tools:
        yield tools
        for runtime in ("node", "bash"):
            tools.call("sessions", {"action": "close", "session": f"in-{runtime}"})


@pytest.fixture
def nexo(broker: BrokerProcess) -> Iterator[Tools]:
    with toolset("nexo", endpoint=broker.endpoint, settings=ToolSettings(cwd="/tmp")) as tools:
        yield tools


def run_code(tools: Tools, code: str, runtime: str) -> tuple[list[str], bool, Any]:
    """The lines of an answer but for its notes, whether it is an error, and the value among its facts."""
    answer = tools.call("eval", {"code": code, "session": f"in-{runtime}", "runtime": runtime})
    return [line for line in answer.text.splitlines() if line[:1] != "["], answer.error, answer.structured.get("value")


@pytest.mark.parametrize(
    ("code", "lines", "value"),
    [
        ("x=41", ["done"], None),
        ("echo $((x + 1))", ["42"], None),
        ("true", ["done"], None),
        ("(exit 3)", ["exit status 3"], "exit status 3"),
        ("echo out; false", ["exit status 1", "output:", "out"], "exit status 1"),
        ("echo bad >&2", ["bad"], None),
    ],
)
def test_bash_has_output_and_tells_of_a_command_that_failed(
    tools: Tools, code: str, lines: list[str], value: str | None
) -> None:
    run_code(tools, "x=41", "bash")
    assert run_code(tools, code, "bash") == (lines, False, value)


@NODE
@pytest.mark.parametrize(
    ("code", "lines", "value"),
    [
        ("const y = 1", ["done"], None),
        ("undefined", ["done"], None),
        ("0", ["0"], "0"),
        ("null", ["null"], "null"),
        ("[1, 'two']", ["[ 1, 'two' ]"], "[ 1, 'two' ]"),
        ("console.log('hi')", ["hi"], None),
        ("console.log('hi'); 7", ["7", "output:", "hi"], "7"),
    ],
)
def test_node_has_values_and_undefined_is_none(tools: Tools, code: str, lines: list[str], value: str | None) -> None:
    shown = run_code(tools, code, "node")
    assert ([line for line in shown[0] if line] or lines, shown[1:]) == (lines, (False, value))


@NODE
def test_an_error_of_node_is_an_error(tools: Tools) -> None:
    lines, error, value = run_code(tools, "nothing.at.all", "node")
    assert error
    assert "ReferenceError: nothing is not defined" in "\n".join(lines)
    assert value is None


def execute(nexo: Tools, runtime: str, *codes: str) -> list[dict[str, Any]]:
    session = nexo.call({"action": "spawn", "runtime": runtime}).structured["session_id"]
    ran = [json.loads(nexo.call({"action": "exec", "session_id": session, "code": code}).text) for code in codes]
    nexo.call({"action": "kill", "session_id": session})
    return ran


def streams(out: str, err: str = "") -> dict[str, Any]:
    return {"stdout": out, "stderr": err, "timed_out": False, "exit_code": None}


def test_the_nexo_tool_has_no_value_of_bash_and_its_failures_on_stderr(nexo: Tools) -> None:
    assert execute(nexo, "bash", "x=4", "echo $x", "ls /nothing-like-it 2>/dev/null", "echo e >&2; (exit 3)") == [
        streams(""),
        streams("4\n"),
        streams("", "exit status 2\n"),
        streams("", "e\nexit status 3\n"),
    ]


@NODE
def test_the_nexo_tool_has_values_of_node_in_its_stdout(nexo: Tools) -> None:
    assert execute(nexo, "node", "var x = 4", "x", "console.log(x); x - 4", "undefined") == [
        streams(""),
        streams("4\n"),
        streams("4\n0\n"),
        streams(""),
    ]

"""Every tool of the default set once through a real broker, where a script of a broker's answers would prove less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import BrokerProcess
from mcp_kit import Connect, run
from replctl.tools import Tools, toolset


@pytest.fixture
def tools(broker: BrokerProcess) -> Iterator[Tools]:
    with toolset(endpoint=broker.endpoint, agent="whole") as tools:
        yield tools


def test_a_clone_has_the_names_and_goes_its_own_way(tools: Tools) -> None:
    tools.call("eval", {"code": "x = [1]\nlock = __import__('threading').Lock()", "session": "whole-a"})
    reply = tools.call("sessions", {"action": "clone", "session": "whole-a", "to": "whole-b"})
    assert reply.text.startswith("session whole-b is a copy of whole-a: 1 name; not copied: lock (")
    tools.call("eval", {"code": "x.append(2)", "session": "whole-b"})
    assert tools.call("eval", {"code": "x", "session": "whole-a"}).structured["value"] == "[1]"
    assert tools.call("eval", {"code": "x", "session": "whole-b"}).structured["value"] == "[1, 2]"


def test_names_are_looked_up_and_completed(tools: Tools) -> None:
    tools.call("eval", {"code": "def double(n):\n    'Twice as much.'\n    return 2 * n", "session": "whole-look"})
    found = tools.call("info", {"session": "whole-look", "what": "lookup", "name": "double"})
    assert found.text.startswith("double(n): function")
    assert "Twice as much." in found.text
    completed = tools.call("info", {"session": "whole-look", "what": "complete", "code": "dou"})
    assert completed.text.startswith("double: function")


def test_stacks_are_shown_while_code_runs(tools: Tools) -> None:
    code = "import time\ndef sleeps():\n    print('on', flush=True)\n    time.sleep(600)\nsleeps()"
    begun = tools.call("eval", {"code": code, "session": "whole-stack", "wait": 0.5})
    assert begun.structured["status"] == "running"
    assert "sleeps" in tools.call("info", {"session": "whole-stack", "what": "stack"}).text
    tools.call("interrupt", {"session": "whole-stack"})


def test_a_file_is_run_and_run_again_when_it_has_changed(tools: Tools, broker: BrokerProcess) -> None:
    file = broker.directory / "files" / "part.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("size = 1\n")
    assert tools.call("eval", {"file": str(file), "session": "whole-file"}).text.endswith("[new session whole-file]")
    file.write_text("size = 22\n")
    assert not tools.call("eval", {"file": str(file), "session": "whole-file", "reload": True}).error
    assert tools.call("eval", {"code": "size", "session": "whole-file"}).structured["value"] == "22"


def test_a_file_elsewhere_is_refused_with_another_way(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("size = 333\n")
    refused = tools.call("eval", {"file": str(tmp_path / "part.py"), "session": "whole-file"})
    assert refused.structured["status"] == "path-not-allowed"
    assert "[hint: code reads what its session sees: eval exec(open(path).read())" in refused.text


def test_the_environment_is_shown_and_a_session_opened_for_it(tools: Tools) -> None:
    reply = tools.call("env", {"session": "whole-env"})
    value = tools.call("eval", {"code": "import sys; sys.executable", "session": "whole-env"}).structured["value"]
    assert (
        reply.text
        == f"session whole-env: no environment of its own, {value.strip(repr('')[0])}\n[new session whole-env]"
    )


def test_a_throw_away_eval_leaves_no_session(tools: Tools) -> None:
    before = tools.call("sessions", {}).structured["sessions"]
    answer = tools.call("eval", {"code": "6*7", "ephemeral": True})
    assert answer.text.splitlines()[0] == "42"
    assert [each["session"] for each in tools.call("sessions", {}).structured["sessions"]] == [
        each["session"] for each in before
    ]


def test_a_time_limit_interrupts_and_keeps_the_variables(tools: Tools) -> None:
    tools.call("eval", {"code": "x = 5", "session": "whole-limit"})
    answer = tools.call("eval", {"code": "while True: pass", "session": "whole-limit", "timeout": 0.3})
    assert answer.error
    assert (answer.structured["status"], answer.structured["state"]) == ("timeout", "kept")
    assert tools.call("eval", {"code": "x", "session": "whole-limit"}).structured["value"] == "5"


@pytest.mark.anyio
async def test_a_sessions_resources_say_what_it_is_and_what_it_ran(connect: Connect) -> None:
    async with connect() as client:
        await run(client, "seen = 3", "whole-res")
        await run(client, "1/0", "whole-res")
        script = await client.read_resource("repl://sessions/whole-res/transcript")
        about = await client.read_resource("repl://sessions/whole-res/info")
    assert script.contents[0].text == "[1] epoch 1, ok\nseen = 3\n\n[2] epoch 1, error\n1/0\n"  # type: ignore[union-attr]
    facts = json.loads(about.contents[0].text)  # type: ignore[union-attr]
    assert (facts["runtime"], facts["epoch"]) == ("python", 1)

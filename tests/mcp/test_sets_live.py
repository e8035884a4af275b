"""The tool sets of other projects over a real broker: what each promises, row by row."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import BrokerProcess, wait_until
from replctl.tools import Tools, ToolSettings, toolset

NODE = pytest.mark.needs_program("node")
RULES = """
[[agents]]
name = "*"
enabled = false

[[agents]]
name = "ana"
allowed-runtimes = ["python", "node"]
max-sessions = 3
timeout-ms = 500

[[agents.bindings]]
name = "chat"
allowed-runtimes = ["python"]
"""


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """A broker on which nobody may do anything but ana, as nexo has it."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    broker = BrokerProcess(directory, config=RULES)
    yield broker
    assert broker.stop() == 0
    shutil.rmtree(directory)


@pytest.fixture
def nexo(broker: BrokerProcess) -> Iterator[Tools]:
    with toolset("nexo", endpoint=broker.endpoint, settings=ToolSettings(cwd="/tmp")) as tools:
        yield tools


def structured(tools: Tools, **arguments: Any) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(tools.call(arguments).text)
    return facts


def test_the_agentrepl_set_opens_its_session_by_any_call(broker: BrokerProcess) -> None:
    with toolset("agentrepl", endpoint=broker.endpoint) as tools:
        assert "directory" in tools.call("info", {"session": "ar"}).text
        assert tools.call("eval", {"code": "6*7", "session": "ar"}).text.splitlines()[0] == "42"
        assert tools.call("reset", {"session": "ar"}).text.startswith("Session reset complete.\n- Old worker (epoch 1)")
        assert tools.call("eval", {"code": " "}).text == "Error: 'code' parameter cannot be empty"


def test_the_reply_set_runs_code_in_its_own_default_session(broker: BrokerProcess) -> None:
    with toolset("reply", endpoint=broker.endpoint) as tools:
        assert tools.call("julia_eval", {"code": "x = 3; print('hi')\nx"}).text == "hi\n3"
        assert (
            tools.call("julia_eval", {"code": "1/0"}).text
            == "ZeroDivisionError: division by zero\n<module> at <mcp-default:2>:1"
        )
        assert tools.call("julia_eval", {"code": "2", "session": "ephemeral"}).text == "2"
        opened = tools.call("julia_new_session", {})
        session = opened.text.removeprefix("Session: ")
        assert session in tools.call("julia_list_sessions", {}).text.splitlines()
        assert tools.call("julia_close_session", {"session": session}).text == f"Closed session: {session}"
        assert tools.call("julia_interrupt", {"session": "mcp-default"}).text == '{"interrupted": []}'


def test_the_nexo_tool_spawns_execs_and_kills(nexo: Tools) -> None:
    spawned = structured(nexo, action="spawn", runtime="python")
    assert sorted(spawned) == ["message", "runtime", "session_id"]
    session = spawned["session_id"]
    assert structured(nexo, action="exec", session_id=session, code="x = 20\nx + 1") == {
        "stdout": "21\n",
        "stderr": "",
        "timed_out": False,
        "exit_code": None,
    }
    failed = structured(nexo, action="exec", session_id=session, code="1/0")
    assert failed["stderr"].endswith("ZeroDivisionError: division by zero\n")
    listed = structured(nexo, action="list")
    mine = next(each for each in listed["sessions"] if each["session_id"] == session)
    assert sorted(mine) == ["cwd", "exit_code", "output_len", "runtime", "session_id", "spawned_at"]
    assert mine["cwd"] == "/tmp"
    assert structured(nexo, action="kill", session_id=session) == {"message": f"session {session} terminated"}
    assert structured(nexo, action="exec", session_id=session, code="1") == {"error": f"session not found: {session}"}


def test_the_nexo_tool_reports_how_the_interpreter_ended(nexo: Tools) -> None:
    session = structured(nexo, action="spawn", runtime="python")["session_id"]
    assert structured(nexo, action="exec", session_id=session, code="import os; os._exit(3)")["exit_code"] == 3
    assert structured(nexo, action="exec", session_id=session, code="import os; os.abort()")["exit_code"] == -6


WAIT_FOR = "import os, time\nwhile not os.path.exists({!r}): time.sleep(.01)\n"


def spawn(nexo: Tools, runtime: str = "python") -> str:
    session: str = structured(nexo, action="spawn", runtime=runtime)["session_id"]
    return session


def test_the_nexo_tool_reads_only_what_is_new(nexo: Tools, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("replctl.tools.compat.nexo.TIMEOUT_SECONDS", 0.3)
    session, opened = spawn(nexo), tmp_path / "gate"
    assert structured(nexo, action="read", session_id=session)["stdout"] == ""
    code = "print('one', flush=True)\n" + WAIT_FOR.format(str(opened)) + "print('two')\n'end'"
    first = structured(nexo, action="exec", session_id=session, code=code)
    assert first == {"stdout": "one\n", "stderr": "", "timed_out": True, "exit_code": None}
    assert structured(nexo, action="read", session_id=session)["stdout"] == ""
    opened.touch()
    second: dict[str, Any] = {}
    wait_until(
        lambda: not second.update(structured(nexo, action="read", session_id=session)) and second["stdout"], "it ends"
    )
    assert second == {"stdout": "two\n'end'\n", "stderr": "", "timed_out": False, "exit_code": None}
    listed = {each["session_id"]: each for each in structured(nexo, action="list")["sessions"]}
    assert listed[session]["output_len"] == len("one\ntwo\n'end'\n")
    assert listed[session]["cwd"] == "/tmp"
    assert listed[session]["spawned_at"].startswith("20")


def test_a_second_exec_of_nexo_loses_nothing_of_the_first(
    nexo: Tools, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("replctl.tools.compat.nexo.TIMEOUT_SECONDS", 0.3)
    session, opened = spawn(nexo), tmp_path / "gate"
    code = WAIT_FOR.format(str(opened)) + "print('of the first')"
    assert structured(nexo, action="exec", session_id=session, code=code)["timed_out"] is True
    opened.touch()
    monkeypatch.setattr("replctl.tools.compat.nexo.TIMEOUT_SECONDS", 20.0)
    both = structured(nexo, action="exec", session_id=session, code="print('of the second')")
    assert both["stdout"] == "of the first\nof the second\n"


@pytest.mark.parametrize(
    ("runtime", "code"),
    [
        (
            "python",
            "import threading, time\n"
            "def late():\n    time.sleep(.2); print('between', flush=True)\n"
            "threading.Thread(target=late).start()",
        ),
        ("bash", "(sleep 0.2; echo between) &"),
        pytest.param("node", "setTimeout(() => console.log('between'), 200); 0", marks=NODE),
    ],
)
def test_the_nexo_tool_reads_what_was_printed_between_execs(nexo: Tools, runtime: str, code: str) -> None:
    session = spawn(nexo, runtime)
    seen = [structured(nexo, action="exec", session_id=session, code=code)["stdout"]]
    wait_until(
        lambda: (
            seen.append(structured(nexo, action="read", session_id=session)["stdout"]) or "between" in "".join(seen)
        ),
        "it is printed",
    )
    assert "".join(seen).count("between") == 1
    assert structured(nexo, action="read", session_id=session)["stdout"] == ""


def test_input_does_not_block_a_session_of_nexo(nexo: Tools) -> None:
    session = spawn(nexo)
    failed = structured(nexo, action="exec", session_id=session, code="input('name? ')")
    assert failed["timed_out"] is False
    assert failed["stderr"]
    assert structured(nexo, action="exec", session_id=session, code="6 * 7")["stdout"] == "42\n"


def test_the_cap_of_nexo_drops_the_oldest(nexo: Tools) -> None:
    code = "for n in range(400_000): print(n)"
    out = structured(nexo, action="exec", session_id=spawn(nexo), code=code)["stdout"]
    assert len(out) == 65_536
    assert out.endswith("\n399998\n399999\n")


def test_the_time_limit_of_the_agent_is_a_timeout_of_nexo(own_broker: BrokerProcess) -> None:
    with toolset("nexo", endpoint=own_broker.endpoint, agent="ana", cwd="/tmp") as tools:
        session = spawn(tools)
        assert structured(tools, action="exec", session_id=session, code="while True: pass")["timed_out"] is True
        assert structured(tools, action="exec", session_id=session, code="1")["stdout"] == "1\n"
        refused = structured(tools, action="spawn", runtime="bash")["error"]
        assert refused == "runtime 'bash' not allowed: ana may open python, node sessions, not bash"
        for _ in range(2):
            spawn(tools)
        assert structured(tools, action="spawn", runtime="python")["error"] == (
            "session limit reached (ana has reached its session limit (max-sessions = 3): close one)"
        )
    with toolset("nexo", endpoint=own_broker.endpoint, agent="stranger") as tools:
        assert structured(tools, action="list")["error"] == "forbidden: agent stranger is not enabled here"
    with toolset("nexo", endpoint=own_broker.endpoint, agent="ana", binding="chat") as tools:
        assert structured(tools, action="spawn", runtime="node")["error"].endswith(
            "ana may open python sessions, not node"
        )


def test_long_code_and_input_stay_reachable_in_the_agentrepl_set(broker: BrokerProcess, tmp_path: Path) -> None:
    opened = tmp_path / "gate"
    with toolset("agentrepl", endpoint=broker.endpoint, settings=ToolSettings(wait=0.3)) as tools:
        long = tools.call("eval", {"code": WAIT_FOR.format(str(opened)) + "'end'", "session": "five"})
        assert f"eval(session='five', eval_id={long.structured['eval_id']})" in long.text
        opened.touch()
        read = {"session": "five", "eval_id": long.structured["eval_id"]}
        wait_until(lambda: tools.call("eval", read).text == "'end'", "it ends")
        asked = tools.call("eval", {"code": "input('name? ')", "session": "five"})
        assert "waits for input: eval(session='five', input=…)" in asked.text
        assert tools.call("eval", {"input": "ada", "session": "five"}).text.splitlines()[0] == "'ada'"


def test_activating_a_directory_without_an_environment_makes_one(broker: BrokerProcess, tmp_path: Path) -> None:
    with toolset("agentrepl", endpoint=broker.endpoint, cwd=str(tmp_path)) as tools:
        structured = tools.call("activate", {"path": str(tmp_path), "session": "fresh-env"})
        assert structured.text.splitlines()[:2] == [
            f"Created a new environment in {tmp_path}",
            f"Activated project: {tmp_path}",
        ]
        where = tools.call("eval", {"code": "import sys; sys.prefix", "session": "fresh-env"}).text
        assert where.splitlines()[0] == repr(str(tmp_path / ".venv"))
        assert "Created" not in tools.call("activate", {"path": str(tmp_path), "session": "fresh-env"}).text


def test_the_reply_set_runs_in_modules_and_opens_no_mistyped_session(broker: BrokerProcess) -> None:
    with toolset("reply", endpoint=broker.endpoint, settings=ToolSettings(wait=0.3)) as tools:
        tools.call("julia_eval", {"code": "import json"})
        assert tools.call("julia_eval", {"code": "__name__", "module": "json"}).text == "'json'"
        mistyped = tools.call("julia_eval", {"code": "1", "session": "mcp-defualt"})
        assert mistyped.structured["status"] == "session-not-found"
        parts = tools.call("julia_eval", {"code": "import sys; print('out'); print('err', file=sys.stderr); 7"})
        assert parts.blocks == ["out", "err", "7"]
        long = tools.call("julia_eval", {"code": "import time; print('on', flush=True); time.sleep(60)"})
        assert "julia_eval(session='mcp-default', eval_id=" in long.text
        tools.call("julia_interrupt", {"session": "mcp-default"})
        end = {"eval_id": long.structured["eval_id"]}
        wait_until(lambda: "interrupted" in tools.call("julia_eval", end).text, "it ends")


def test_the_slim_set_reaches_all_of_an_eval_with_one_tool(broker: BrokerProcess) -> None:
    with toolset("slim", endpoint=broker.endpoint, settings=ToolSettings(wait=0.3)) as tools:
        loop = tools.call("eval", {"code": "print('on', flush=True)\nwhile True: pass", "session": "slim"})
        assert f"wait for more: eval(session='slim', eval_id={loop.structured['eval_id']}, offset=3)" in loop.text
        assert tools.call("eval", {"session": "slim", "interrupt": True}).text.startswith("interrupted eval 1 ")
        wait_until(
            lambda: "interrupted" in tools.call("eval", {"session": "slim", "eval_id": 1}).text, "it is interrupted"
        )
        tools.call("eval", {"code": "while True: pass", "session": "slim"})
        assert tools.call("eval", {"code": "6*7", "session": "slim", "interrupt": True, "wait": 20}).text == "42"
        asked = tools.call("eval", {"code": "input('name? ')", "session": "slim"})
        assert "eval(session='slim', input=…)" in asked.text
        assert tools.call("eval", {"input": "ada", "session": "slim"}).text.splitlines()[0] == "'ada'"
        much = tools.call("eval", {"code": "for n in range(9000): print(n)", "session": "slim", "wait": 20})
        found = {"session": "slim", "eval_id": much.structured["eval_id"], "grep": "4321"}
        assert tools.call("eval", found).text == "4321"
        assert tools.call("eval", {}).structured == {"status": "bad-arguments"}

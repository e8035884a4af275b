"""The tool sets of other projects: their names, their arguments, their answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stub_broker import Send, send_done
from tools_kit import Start, call_tool, scripted_replies


def test_the_reply_set_speaks_as_reply_does(stub: Start) -> None:
    def script(_: dict[str, Any], say: Send) -> None:
        say(out="printed\n")
        send_done(say, value="42")

    broker = stub(script)
    assert call_tool(broker, "julia_eval", {"code": "x"}, "reply").text == "printed\n42"
    assert {"session": "mcp-default", "allow-stdin": False}.items() <= broker.next_request().items()


def test_the_reply_set_puts_a_timeout_before_an_error(stub: Start) -> None:
    broker = stub(scripted_replies(eval={"status": ["done", "error", "timeout"], "err": "eval timed out"}))
    answer = call_tool(broker, "julia_eval", {"code": "x", "timeout_ms": 5}, "reply")
    assert (answer.text, answer.error) == ("Evaluation timed out", True)
    assert broker.next_request()["timeout-ms"] == 5


def test_the_reply_set_lists_sessions_a_line_each(stub: Start) -> None:
    entry = {
        "session": "u-1",
        "name": "lab",
        "state": "idle",
        "runtime": "python",
        "epoch": 1,
        "created": "x",
        "created-at": 1.0,
        "last-activity": "x",
        "eval-count": 0,
        "queued": 0,
        "running": None,
        "owner": "uid:0",
        "agent": None,
        "cwd": None,
        "ref": "lab",
    }
    broker = stub(scripted_replies(ls_sessions={"sessions": [entry, {**entry, "session": "u-2", "name": None}]}))
    assert call_tool(broker, "julia_list_sessions", {}, "reply").text == "u-1 (lab)\nu-2"


def test_the_reply_set_gives_lookups_as_json(stub: Start) -> None:
    broker = stub(scripted_replies(lookup={"found": True, "name": "sin", "doc": "Sine."}))
    answer = call_tool(broker, "julia_lookup", {"symbol": "sin", "session": "lab"}, "reply")
    assert json.loads(answer.text) == {"found": True, "name": "sin", "doc": "Sine."}


@pytest.mark.parametrize("action", ["add", "rm", "status", "update", "instantiate", "resolve", "test"])
def test_the_agentrepl_set_has_its_package_actions(stub: Start, action: str) -> None:
    broker = stub(scripted_replies())
    call_tool(broker, "pkg", {"action": action, "packages": "numpy, pandas"}, "agentrepl")
    assert broker.next_request()["op"] == "new-session"
    assert {"op": "env", "action": action, "packages": ["numpy", "pandas"]}.items() <= broker.next_request().items()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"action": "free"}, "no counterpart"), ({"action": "add"}, "'packages' is required")],
)
def test_the_agentrepl_set_says_what_it_cannot_do(stub: Start, arguments: dict[str, Any], words: str) -> None:
    answer = call_tool(stub(scripted_replies()), "pkg", arguments, "agentrepl")
    assert answer.error
    assert words in answer.text


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"action": "spawn"}, "'runtime' required for spawn"),
        ({"action": "exec", "session_id": "u"}, "'code' required for exec"),
        ({"action": "kill"}, "'session_id' required for kill"),
    ],
)
def test_the_nexo_tool_names_what_is_missing(stub: Start, arguments: dict[str, Any], error: str) -> None:
    answer = call_tool(stub(scripted_replies()), "Repl", arguments, "nexo")
    assert json.loads(answer.text) == {"error": error}
    assert answer.error

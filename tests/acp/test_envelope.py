"""Lines and JSON-RPC: what is a message, what is answered, and that nothing a client sends ends the agent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acp_kit import Agent
from replctl.acp import rpc
from replctl.acp.stdio import MAX_LINE, LineSplitter

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "_meta"])
VALUES = JSON | st.sampled_from(["2.0", "", "initialize", "session/prompt", "session/cancel"])


def line(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def error_of(agent: Agent, raw: bytes) -> dict[str, Any]:
    """Send a line, and get the next message, which must be an error."""
    agent.raw(raw + b"\n")
    message = agent.next()
    return {"id": message["id"], **message["error"]}


def test_an_id_that_is_a_number_or_a_text_makes_a_request() -> None:
    assert rpc.decode(line(id=1, method="a")) == rpc.RpcRequest(1, "a", {})
    assert rpc.decode(line(id="one", method="a", params={"b": 2})) == rpc.RpcRequest("one", "a", {"b": 2})
    assert rpc.decode(line(id=0, method="a")) == rpc.RpcRequest(0, "a", {})


@pytest.mark.parametrize(("name", "expected"), [(7, 7), ("a", "a"), ("\ud800", None), (None, None), ("", None)])
def test_a_request_with_half_an_emoji_is_answered_under_its_id(name: Any, expected: Any) -> None:
    found = rpc.decode(line(id=name, method="session/prompt", params={"prompt": [{"type": "text", "text": "\ud83d"}]}))
    assert isinstance(found, rpc.InvalidMessage)
    assert (found.error.code, found.id) == (rpc.PARSE_ERROR, expected)
    rpc.error_line(found.id, found.error)


@pytest.mark.parametrize("name", ["", " ", None])
def test_a_blank_id_makes_a_notification(name: Any) -> None:
    assert rpc.decode(line(id=name, method="session/cancel")) == rpc.RpcNotification("session/cancel", {})


def test_no_id_makes_a_notification() -> None:
    assert rpc.decode(line(method="a")) == rpc.RpcNotification("a", {})


def test_answers_are_told_from_errors_and_ones_without_an_id_are_ignored() -> None:
    assert rpc.decode(line(id=-1, result={"a": 1})) == rpc.RpcResponse(-1, result={"a": 1})
    assert rpc.decode(line(id=-1, error={"code": 1})) == rpc.RpcResponse(-1, error={"code": 1})
    assert rpc.decode(line(result={})) is None
    assert rpc.decode(line(error={})) is None


@pytest.mark.parametrize("name", [1.5, True, [], {}, [1], {"a": 1}])
def test_an_id_of_another_type_is_an_invalid_request_without_an_id(name: Any) -> None:
    found = rpc.decode(line(id=name, method="initialize"))
    assert isinstance(found, rpc.InvalidMessage)
    assert (found.id, found.error.code) == (None, rpc.INVALID_REQUEST)


def test_an_error_has_data_only_when_there_is_some() -> None:
    assert json.loads(rpc.error_line(1, rpc.RpcError(-32603, "a\nb")))["error"] == {"code": -32603, "message": "a b"}
    assert json.loads(rpc.error_line(1, rpc.RpcError(-32603, "a", {"b": 1})))["error"]["data"] == {"b": 1}


def test_every_encoder_makes_exactly_one_line() -> None:
    lines = [
        rpc.result_line(1, {"a": "b\nc\r\u2028"}),
        rpc.error_line(None, rpc.RpcError(-1, "\n\n", {"a": "\n"})),
        rpc.request_line(-1, "a", {"b": "\n"}),
        rpc.notification_line("a", {"b": "\n"}),
    ]
    assert [each.count(b"\n") for each in lines] == [1] * 4
    assert all(each.endswith(b"\n") and json.loads(each) for each in lines)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_decoder_raise(data: bytes) -> None:
    assert isinstance(
        rpc.decode(data), rpc.RpcRequest | rpc.RpcNotification | rpc.RpcResponse | rpc.InvalidMessage | None
    )


@given(st.dictionaries(KEYS, VALUES, max_size=6) | JSON)
def test_no_json_makes_the_decoder_raise_and_what_is_answered_can_be_encoded(value: Any) -> None:
    found = rpc.decode(json.dumps(value).encode())
    if isinstance(found, rpc.RpcRequest):
        assert json.loads(rpc.result_line(found.id, {}))["id"] == found.id
    elif isinstance(found, rpc.InvalidMessage):
        assert json.loads(rpc.error_line(found.id, found.error))["error"]["code"] in (-32700, -32600)


@pytest.mark.parametrize("depth", [100, 2_000, 200_000])
def test_nesting_of_any_depth_is_answered(depth: int) -> None:
    assert isinstance(rpc.decode(b"[" * depth + b"]" * depth), rpc.InvalidMessage)
    found = rpc.decode(b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":' + b"[" * depth + b"]" * depth + b"}}")
    assert isinstance(found, rpc.RpcRequest | rpc.InvalidMessage)


def test_numbers_of_any_length_are_answered() -> None:
    assert isinstance(
        rpc.decode(b'{"jsonrpc":"2.0","method":"a","id":' + b"9" * 10_000 + b"}"), rpc.RpcRequest | rpc.InvalidMessage
    )


@given(st.lists(st.binary(max_size=30).map(lambda each: each.replace(b"\n", b"")), max_size=8), st.data())
def test_lines_are_the_same_however_the_stream_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(each + b"\n" for each in lines)
    cutter, got, at = LineSplitter(1000), [], 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream)))
        got += list(cutter.feed(stream[at : at + step]))
        at += step
    assert got == [each for each in lines if each.strip()]


def test_a_line_over_the_bound_is_told_of_once_and_never_held() -> None:
    cutter = LineSplitter(10)
    got = [each for _ in range(1000) for each in cutter.feed(b"x" * 8)]
    assert got == [None]
    assert list(cutter.feed(b"\nok\nhalf")) == [b"ok"]
    assert list(cutter.end()) == [b"half"]


def test_malformed_json_is_a_parse_error(agent: Agent) -> None:
    assert error_of(agent, b"{not json") == {
        "id": None,
        "code": -32700,
        "message": "Parse error: not one JSON value in UTF-8",
    }
    assert error_of(agent, b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}')["code"] == -32700
    assert error_of(agent, b"[" * 50_000)["code"] == -32700


@pytest.mark.parametrize(
    "raw", [b"[]", b"3", b'"text"', b"null", b"true", b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]']
)
def test_json_that_is_no_object_is_an_invalid_request(agent: Agent, raw: bytes) -> None:
    answer = error_of(agent, raw)
    assert (answer["id"], answer["code"]) == (None, -32600)


@pytest.mark.parametrize("version", [None, "1.0", 2, "2.00"])
def test_another_jsonrpc_version_is_an_invalid_request_under_its_id(agent: Agent, version: Any) -> None:
    answer = error_of(agent, json.dumps({"jsonrpc": version, "id": 7, "method": "initialize"}).encode())
    assert (answer["id"], answer["code"]) == (7, -32600)


def test_no_jsonrpc_version_is_an_invalid_request(agent: Agent) -> None:
    assert error_of(agent, b'{"id":7,"method":"initialize"}')["code"] == -32600


@pytest.mark.parametrize("params", [None, [], "text", 1])
def test_params_that_are_no_object_are_an_invalid_request_under_its_id(agent: Agent, params: Any) -> None:
    answer = error_of(agent, line(id=8, method="session/new", params=params))
    assert (answer["id"], answer["code"]) == (8, -32600)


def test_a_notification_with_params_that_are_no_object_is_refused(agent: Agent) -> None:
    assert error_of(agent, line(method="session/cancel", params=[]))["code"] == -32600


def test_missing_params_are_an_empty_object(agent: Agent) -> None:
    agent.methods["bare"] = "initialize"
    agent.raw(line(id="bare", method="initialize") + b"\n")
    assert agent.reply("bare")["result"]["protocolVersion"] == 1


def test_an_unknown_method_is_not_found_and_an_extension_gets_an_answer(agent: Agent) -> None:
    for method in ("session/fork", "_vendor/thing", "nonsense"):
        assert agent.error(method)["code"] == -32601


def test_notifications_are_never_answered(agent: Agent) -> None:
    agent.notify("nonsense")
    agent.notify("_vendor/thing", a=1)
    agent.notify("session/cancel", sessionId="acp-unknown")
    agent.notify("session/cancel")
    agent.notify("$/cancel_request", requestId=12345)
    agent.raw(line(id="", method="session/prompt") + b"\n")
    before = len(agent.messages)
    agent.call("initialize", protocolVersion=1)
    assert len(agent.messages) == before + 1


def test_an_answer_that_nobody_waits_for_is_dropped(agent: Agent) -> None:
    agent.respond(-999, {"outcome": {"outcome": "selected", "optionId": "allow"}})
    agent.respond("text", {})
    agent.send({"jsonrpc": "2.0", "id": -998, "error": {"code": 1, "message": "no"}})
    agent.send({"jsonrpc": "2.0", "result": {}})
    before = len(agent.messages)
    agent.call("initialize", protocolVersion=1)
    assert len(agent.messages) == before + 1


def test_blank_lines_and_carriage_returns_are_ignored(agent: Agent) -> None:
    agent.methods["crlf"] = "initialize"
    agent.raw(b"\n  \n\r\n" + line(id="crlf", method="initialize") + b"\r\n")
    assert agent.next()["id"] == "crlf"


def test_a_huge_line_is_refused_and_the_next_one_is_heard(agent: Agent) -> None:
    agent.raw(b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (MAX_LINE + 10) + b'"}\n')
    answer = agent.next()
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)
    assert agent.result("initialize", protocolVersion=1)["protocolVersion"] == 1


def test_an_id_that_is_in_use_is_refused(agent: Agent, session: str) -> None:
    first = agent.send_prompt(session, "print('on'); import time; time.sleep(30)")
    agent.until_running()
    assert agent.reply(agent.ask("initialize", {}, name=first))["error"]["code"] == -32600
    agent.methods[first] = "session/prompt"
    agent.cancel(session)
    assert agent.turn(first).stop == "cancelled"


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=80).map(lambda each: each.replace(b"\n", b" ")), min_size=1, max_size=5))
def test_the_agent_survives_any_lines(shared: Agent, lines: list[bytes]) -> None:
    shared.raw(b"\n".join(lines) + b"\n")
    assert shared.result("initialize", protocolVersion=1)["protocolVersion"] == 1


METHODS = [
    "initialize",
    "session/new",
    "session/load",
    "session/resume",
    "session/list",
    "session/close",
    "session/delete",
    "session/set_mode",
    "session/set_config_option",
    "session/prompt",
]
FIELDS = st.sampled_from(["sessionId", "cwd", "mcpServers", "modeId", "configId", "value", "prompt", "cursor", "_meta"])


@settings(max_examples=200)
@given(st.sampled_from(METHODS), st.dictionaries(FIELDS, JSON, max_size=5))
def test_every_request_gets_exactly_one_answer_whatever_its_params(shared: Agent, method: str, params: Any) -> None:
    name = shared.ask(
        method, json.loads(json.dumps(params).replace("NaN", "1").replace("-Infinity", "1").replace("Infinity", "1"))
    )
    before = len(shared.messages)
    shared.reply(name)
    shared.result("initialize", protocolVersion=1)
    assert [each["id"] for each in shared.messages[before:] if "id" in each].count(name) == 1

"""The first answers of the MCP server, given before the SDK is there: the same as the SDK's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from kit import BrokerProcess
from mcp_kit import HELLO, finish, receive, send_line, send_request, start_raw
from replctl.mcp.early import VERSIONS, EarlyExchange, EarlyServer
from replctl.tools.catalog import ToolSet

INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def serve(*messages: Any, ends: bool = True) -> tuple[list[dict[str, Any]], EarlyExchange]:
    """The early answers to these lines, and what is handed over."""
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in messages]
    sent: list[bytes] = []
    server = EarlyServer(ToolSet(), sent.append)
    exchange = server.serve(lambda: lines.pop(0) if lines else b"")
    assert ends or lines == []
    return [json.loads(each) for each in sent], exchange


def test_the_revisions_are_those_of_the_sdk() -> None:
    assert VERSIONS == HANDSHAKE_PROTOCOL_VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_the_early_answers_are_the_sdks(broker: BrokerProcess, version: str) -> None:
    answers = []
    for odd in ({}, {"_meta": {}}):  # with the second the SDK is asked
        process = start_raw(broker)
        send_request(process, "initialize", 1, **{**HELLO, "protocolVersion": version}, **odd)
        first = receive(process)
        send_line(process, json.dumps(INITIALIZED).encode())
        send_request(process, "tools/list", 2)
        second = receive(process)
        send_request(process, "ping", 3)
        assert receive(process) == {"jsonrpc": "2.0", "id": 3, "result": {}}
        finish(process)
        answers.append((first, second))
    early, later = answers
    assert early == later
    assert early[0]["result"]["protocolVersion"] == version


def test_the_usual_first_requests_are_answered_and_told_on() -> None:
    answers, exchange = serve(INITIALIZE, INITIALIZED, LIST, {"jsonrpc": "2.0", "id": 3, "method": "ping"})
    assert [each["id"] for each in answers] == [1, 2]
    assert answers[1]["result"]["tools"][0]["name"] == "eval"
    assert [json.loads(line) for line in exchange.lines] == [INITIALIZE, INITIALIZED]
    assert (exchange.answered, exchange.is_over) == (1, False)


@pytest.mark.parametrize(
    "message",
    [
        b"garbage\n",
        b"[]\n",
        LIST,
        {**INITIALIZE, "params": {**HELLO, "protocolVersion": "1999-01-01"}},
        {**INITIALIZE, "params": {**HELLO, "capabilities": 5}},
        {**INITIALIZE, "params": {**HELLO, "capabilities": {"roots": {"listChanged": "x"}}}},
        {**INITIALIZE, "params": {**HELLO, "clientInfo": {"name": "x"}}},
        {**INITIALIZE, "params": []},
        {**INITIALIZE, "id": None},
        {**INITIALIZE, "id": True},
        {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}},
    ],
)
def test_everything_unusual_is_left_to_the_sdk(message: Any) -> None:
    answers, exchange = serve(message, LIST)
    assert answers == []
    assert len(exchange.lines) == 1
    assert (exchange.answered, exchange.is_over) == (None, False)


@pytest.mark.parametrize("after", [{**LIST, "params": {"cursor": "x"}}, {**LIST, "id": None}, b"{\n", INITIALIZE])
def test_what_is_unusual_later_is_left_to_the_sdk_too(after: Any) -> None:
    answers, exchange = serve(INITIALIZE, after)
    assert [each["id"] for each in answers] == [1]
    assert (len(exchange.lines), exchange.answered) == (2, 1)


def test_input_that_ends_early_ends_the_server_or_is_judged_by_the_sdk() -> None:
    assert serve()[1].is_over
    assert serve(INITIALIZE)[1].is_over
    assert serve(INITIALIZE, b'{"jsonrpc"')[1] == EarlyExchange(
        [json.dumps(INITIALIZE) + "\n", '{"jsonrpc"'], 1, is_over=False
    )

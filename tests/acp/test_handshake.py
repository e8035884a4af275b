"""Initialization: the capabilities that the agent declares."""

from __future__ import annotations

import time

import pytest

from acp_kit import Agent, Start
from replctl import __version__
from replctl.acp.options import RUNTIMES


def test_initialize_offers_only_what_works(agent: Agent) -> None:
    reply = agent.start()
    assert reply["protocolVersion"] == 1
    assert reply["agentInfo"] == {"name": "replctl", "title": "replctl", "version": __version__}
    assert reply["agentCapabilities"] == {
        "loadSession": True,
        "promptCapabilities": {"image": False, "audio": False, "embeddedContext": False},
        "mcpCapabilities": {"http": False, "sse": False},
        "sessionCapabilities": {"list": {}, "delete": {}, "resume": {}, "close": {}},
    }


@pytest.mark.parametrize("version", [0, 1, 2, 65535])
def test_any_version_is_answered_with_the_one_that_is_spoken(agent: Agent, version: int) -> None:
    assert agent.result("initialize", protocolVersion=version)["protocolVersion"] == 1


def test_a_version_that_is_no_number_is_invalid(agent: Agent) -> None:
    assert agent.error("initialize", protocolVersion="one")["code"] == -32602


def test_initialize_may_be_repeated_while_a_session_is_open(agent: Agent, session: str) -> None:
    agent.prompt(session, "x = 1")
    agent.start()
    assert agent.prompt(session, "x").text == "1"


def test_initialize_is_not_required_first(start: Start) -> None:
    agent = start()
    assert agent.prompt(agent.new(), "6*7").text == "42"


def test_there_is_nothing_to_authenticate_for(agent: Agent) -> None:
    assert agent.start()["authMethods"] == []
    assert agent.result("authenticate", methodId="any") == {}
    assert agent.result("logout") == {}
    session = agent.new()
    assert agent.result("session/close", sessionId=session) == {}


def test_our_own_facts_are_in_our_own_part_of_meta(agent: Agent) -> None:
    assert agent.start()["_meta"] == {
        "replctl": {"runtimes": list(RUNTIMES), "maxLineBytes": 16 * 1024 * 1024, "permissionTimeoutMs": 20_000}
    }


def test_nothing_of_the_clients_is_called_that_it_did_not_offer(start: Start) -> None:
    agent = start()
    agent.start()
    agent.prompt(agent.new(), "print(1)")
    assert {each["method"] for each in agent.messages if "method" in each} == {"session/update"}


def test_the_handshake_does_not_wait_for_a_broker(start: Start) -> None:
    agent = start("--no-start", REPLCTL_ENDPOINT="ipc:///tmp/no-broker-is-here.sock")
    assert agent.start()["protocolVersion"] == 1
    error = agent.error("session/new", cwd="/tmp", mcpServers=[])
    assert (error["code"], error["data"]["kind"]) == (-32603, "no-broker")
    assert agent.result("session/list") == {"sessions": []}
    assert agent.end() == 0


def test_many_requests_at_once_are_each_answered(agent: Agent) -> None:
    names = [agent.ask("initialize", {"protocolVersion": 1}) for _ in range(200)]
    deadline = time.monotonic() + 20
    left = set(names)
    while left:
        assert time.monotonic() < deadline
        left.discard(agent.next().get("id"))

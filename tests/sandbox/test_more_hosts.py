"""A person lets a session reach one more host: asked by an agent over MCP, in an editor, at a terminal, on the wire."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ElicitRequestParams, ElicitResult, TextContent

from attack_targets import begin, end
from kit import TIMEOUT_S, BrokerProcess, Wire, wait_until
from network_kit import HELLO, Upstream

GET = "import urllib.request as r; r.urlopen('http://extra.test', timeout=10).read().decode().strip()"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="module")
def broker(who: str, upstream: Upstream) -> Iterator[BrokerProcess]:
    more = [f"extra.test=127.0.0.1:{upstream.http}"]
    broker = begin(who, config=upstream.config(["pkg.test"], 'more-hosts = "ask"', more=more), warm=1)
    broker.environ["REPLCTL_CONFIG"] = str(broker.directory / "config.toml")
    yield broker
    end(broker)


def is_refused(wire: Wire, session: str) -> bool:
    result = wire.run(GET, session=session)
    return result.get("ex") is not None and "sandbox.allowed-hosts; allow-hosts may add it" in result["notice"]


def test_a_running_session_reaches_what_was_approved_until_its_time_is_over(wire: Wire) -> None:
    assert is_refused(wire, "s")
    asked = wire.ask("allow-hosts", session="s", hosts=["extra.test"], for_ms=2000)
    assert asked.status == ["done", "error", "approval-needed"]
    assert is_refused(wire, "s"), "a question changes nothing"
    given = wire.ask("allow-hosts", session="s", hosts=["extra.test"], for_ms=2000, approval=asked["approval"]["id"])
    assert given.status == ["done"]
    assert wire.run(GET).value == repr(HELLO)
    assert is_refused(wire, "another")
    wait_until(lambda: is_refused(wire, "s"), "its time is over")


def test_a_loop_that_waits_for_a_host_goes_on_when_it_is_allowed(wire: Wire) -> None:
    code = f"import time\nwhile True:\n    try: {GET.replace('; ', '; found = ')}; break\n    except OSError: time.sleep(0.05)\nfound"
    running = wire.send("eval", code=code, session="loop", if_missing="create")
    wait_until(lambda: wire.ask("ls-sessions")["sessions"][-1]["state"] == "busy", "it runs")
    approval = wire.ask("allow-hosts", session="loop", hosts=["extra.test"])["approval"]["id"]
    wire.ask("allow-hosts", session="loop", hosts=["extra.test"], approval=approval)
    assert wire.answer(running).value == repr(HELLO)


@pytest.mark.parametrize("action", ["accept", "decline"])
def test_an_agents_question_is_put_to_the_person_at_its_client(broker: BrokerProcess, action: str) -> None:
    questions = []

    async def decide(_: object, params: ElicitRequestParams) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult.model_validate({"action": action, "content": {}})

    async def talk() -> tuple[str, str]:
        command = ["-P", "-m", "replctl", "mcp", "--endpoint", broker.endpoint]
        server = StdioServerParameters(command=sys.executable, args=command, env=broker.environ)
        async with Client(stdio_client(server), elicitation_callback=decide) as client:
            session = {"session": f"mcp-{action}"}
            before = await client.call_tool("eval", {"code": GET, **session})
            asked = {"action": "allow-hosts", "packages": ["extra.test"], **session}
            allowed = await client.call_tool("env", asked)
            after = await client.call_tool("eval", {"code": GET, **session})
            texts = [
                each.text for result in (before, allowed, after) if isinstance(each := result.content[0], TextContent)
            ]
            assert "allow-hosts may add it" in texts[0]
            return texts[1], texts[2]

    answer, after = asyncio.run(talk())
    assert questions == ["allow-hosts extra.test\nsandbox.more-hosts = ask (hook sandbox.more-hosts)"]
    if action == "accept":
        assert answer.startswith("session mcp-accept may reach extra.test until 20")
        assert HELLO in after
    else:
        assert "a person has to approve" in answer
        assert HELLO not in after


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 5)])
def test_the_command_asks_who_sits_at_the_terminal(
    broker: BrokerProcess, wire: Wire, tmp_path: Path, typed: str, code: int
) -> None:
    wire.run("1", session="pty")
    ours, theirs = pty.openpty()
    words = ["allow-hosts", "--endpoint", broker.endpoint, "-s", "pty", "extra.test", "--for", "10m"]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "replctl", *words],
        env=broker.environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        cwd=tmp_path,
    )
    os.close(theirs)
    seen = b""
    while b"Run it? [y/N]" not in seen:
        seen += os.read(ours, 4096)
    assert b"allow-hosts extra.test for 600 s" in seen
    os.write(ours, typed.encode())
    assert process.wait(TIMEOUT_S) == code
    os.close(ours)
    assert is_refused(wire, "pty") is (code != 0)
    wire.ask("close", session="pty")

"""Client and broker of different versions are told so, at the first answer of a connection and once."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from kit import TIMEOUT_S, BrokerProcess, Wire
from replctl import AsyncClient, Client, __version__
from replwire.requests import describe_ops

OLD = "0.0.9"
VERSION_TEXTS = (
    f"the broker (replctl {OLD}) is older than this client ({__version__}): "
    "`replctl shutdown` stops it with its sessions, and the next command starts the new version"
)


@pytest.fixture(scope="module")
def older() -> Iterator[BrokerProcess]:
    """A broker whose distribution says that it is an older one."""
    directory = Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp"))
    found = distribution("replctl")
    info = directory / "installed" / f"replctl-{OLD}.dist-info"
    info.mkdir(parents=True)
    for name in ("METADATA", "entry_points.txt"):
        text = found.read_text(name)
        assert text is not None
        (info / name).write_text(text.replace(f"\nVersion: {__version__}\n", f"\nVersion: {OLD}\n"))
    broker = BrokerProcess(directory, through=["env", f"PYTHONPATH={info.parent}"])
    yield broker
    assert broker.process.poll() is None, broker.log_text()
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("op", "fields", "code"),
    [
        ("ping", {}, "pong"),
        ("eval", {"code": "print(1)"}, "done"),
        ("dance", {}, "unknown-op"),
        ("eval", {}, "error"),
        ("new-session", {"cpu_percent": "all"}, "invalid-request"),
    ],
)
def test_a_request_of_another_version_is_first_told_the_brokers(
    wire: Wire, op: str, fields: dict[str, Any], code: str
) -> None:
    """Also one that this version does not have, which would else be a riddle."""
    answer = wire.ask(op, client_version="99.1", **fields)
    assert answer.messages[0] == {"id": answer["id"], "broker-version": __version__}
    assert code in answer.status
    assert [message for message in answer.messages[1:] if "broker-version" in message] == []


def test_one_of_the_same_version_and_one_that_says_none_are_told_nothing(wire: Wire) -> None:
    assert wire.ask("ping", client_version=__version__).messages == wire.ask("ping", id="r1").messages
    assert wire.ask("ping", client_version="9" * 65).status == ["done", "error", "invalid-request"]
    assert all("client-version" in op["optional"] for op in describe_ops().values())


def test_a_client_in_python_knows_the_brokers_version_and_is_told_once_a_connection(older: BrokerProcess) -> None:
    results: list[str] = []
    with Client(older.endpoint, start=False, on_mismatch=results.append) as client:
        assert client.broker_version is None
        assert [client.eval("6*7", ephemeral=True).value for _ in range(2)] == ["42", "42"]
        assert (client.broker_version, results) == (OLD, [VERSION_TEXTS])
        client.disconnect()
        client.ping()
        assert results == [VERSION_TEXTS, VERSION_TEXTS]


def test_so_does_the_client_of_an_event_loop(older: BrokerProcess, broker: BrokerProcess) -> None:
    async def run() -> None:
        results: list[str] = []
        async with AsyncClient(older.endpoint, start=False, on_mismatch=results.append) as client:
            await asyncio.gather(*(client.ping() for _ in range(5)))
            assert (client.broker_version, results) == (OLD, [VERSION_TEXTS])
        async with AsyncClient(broker.endpoint, start=False, on_mismatch=results.append) as client:
            await client.ping()
            assert (client.broker_version, results) == (None, [VERSION_TEXTS])

    asyncio.run(run())


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_command_says_it_in_one_line_beside_its_output(older: BrokerProcess, form: list[str]) -> None:
    command = [sys.executable, "-m", "replctl", "eval", "6*7", "--ephemeral", "--endpoint", older.endpoint, *form]
    ended = subprocess.run(command, env=older.environ, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr == f"replctl: {VERSION_TEXTS}\n"
    assert (json.loads(ended.stdout)["value"] if form else ended.stdout.strip()) == "42"


class _Server:
    """`replctl mcp` or `replctl acp`, and JSON-RPC with it."""

    def __init__(self, broker: BrokerProcess, kind: str) -> None:
        command = [sys.executable, "-m", "replctl", kind, "--endpoint", broker.endpoint]
        self._process = subprocess.Popen(
            command, env=broker.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._count = 0

    def ask(self, method: str, **params: Any) -> tuple[dict[str, Any], str]:
        """The result of a request, and all that came until it, as text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._count += 1
        line = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        came = ""
        while True:
            assert select.select([self._process.stdout], [], [], TIMEOUT_S)[0], came
            message = self._process.stdout.readline().decode()
            assert message, came
            came += message
            if json.loads(message).get("id") == self._count:
                return json.loads(message)["result"], came

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(TIMEOUT_S) == 0
        self._process.stdout.close()


def test_an_agent_reads_it_in_the_first_answer_of_a_tool(older: BrokerProcess) -> None:
    who = {"name": "raw", "version": "1"}
    with _Server(older, "mcp") as server:
        server.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=who)
        calls = [server.ask("tools/call", name="eval", arguments={"code": "6*7", "session": "m"})[0] for _ in range(2)]
    first, second = (call["content"][0]["text"] for call in calls)
    assert first.splitlines()[0] == "42"
    assert first.endswith(f"\n[{VERSION_TEXTS}]")
    assert "older" not in second


def test_an_editor_shows_it_in_the_first_turn(older: BrokerProcess) -> None:
    with _Server(older, "acp") as server:
        server.ask("initialize", protocolVersion=1, clientCapabilities={})
        session = server.ask("session/new", cwd=os.getcwd(), mcpServers=[])[0]["sessionId"]
        prompts = [
            server.ask("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "6*7"}])[1]
            for _ in range(2)
        ]
    assert [prompt.count(VERSION_TEXTS) for prompt in prompts] == [1, 0]
    assert all("42" in prompt for prompt in prompts)

"""Streamable HTTP: the official client gets in with the token, and nobody without it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from kit import BrokerProcess, wait_until
from mcp_kit import HELLO, run, text
from replctl.client.errors import ReplError
from replctl.mcp.http import bind, load_token

pytestmark = pytest.mark.anyio


class Served:
    """A server process on a free port, and what it said."""

    def __init__(self, broker: BrokerProcess) -> None:
        command = [sys.executable, "-P", "-m", "replctl", "mcp", "--endpoint", broker.endpoint, "--http", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, env=broker.environ)
        assert self.process.stderr is not None
        result = re.fullmatch(
            r"replctl: MCP at http://127\.0\.0\.1:(\d+)/mcp; its bearer token is in (.*)\n",
            self.process.stderr.readline().decode(),
        )
        assert result is not None
        self.port = int(result[1])
        self.path = Path(result[2])
        self.token = self.path.read_text().strip()
        self.url = f"http://127.0.0.1:{self.port}/mcp"

    def post(self, **headers: str) -> int:
        """The status of an `initialize` with these headers and nothing the server would forgive."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
        usual = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {self.token}",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("POST", "/mcp", body, {**usual, **named})
            return connection.getresponse().status
        finally:
            connection.close()

    @asynccontextmanager
    async def client(self, mode: str = "auto") -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as web,
            Client(streamable_http_client(self.url, http_client=web), mode=mode) as client,
        ):
            yield client


@pytest.fixture(scope="module")
def served(broker: BrokerProcess) -> Iterator[Served]:
    served = Served(broker)
    yield served
    served.process.send_signal(signal.SIGTERM)
    _, err = served.process.communicate(timeout=20)
    assert b"Traceback" not in err, err
    assert served.token.encode() not in err


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_runs_code(served: Served, mode: str) -> None:
    async with served.client(mode) as client:
        assert text(await run(client, "6*7", f"http-{mode}")).splitlines()[0] == "42"
        assert len((await client.list_tools()).tools) == 8


async def test_cancelling_interrupts(served: Served, broker: BrokerProcess) -> None:
    for mode in ("legacy", "auto"):
        session = f"http-cancel-{mode}"
        async with served.client(mode) as client:
            await run(client, "x = 1", session)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, client, "import time\ntime.sleep(600)", session)
                await anyio.to_thread.run_sync(_until, broker, session, "running")
                tasks.cancel_scope.cancel()
            await anyio.to_thread.run_sync(_until, broker, session, "done")
            assert text(await run(client, "x", session)).splitlines()[0] == "1"


def _until(broker: BrokerProcess, session: str, state: str) -> None:
    with broker.wire() as wire:
        wait_until(
            lambda: (
                wire.ask("jobs", session=session)["jobs"][-1]["state"] == state
                and len(wire.ask("jobs", session=session)["jobs"]) == 2
            ),
            state,
        )


async def test_the_end_of_the_server_is_not_the_end_of_the_code(broker: BrokerProcess) -> None:
    opened = broker.directory / "http-end"
    code = f"import os, time\nwhile not os.path.exists({str(opened)!r}): time.sleep(.01)\n'end'"
    served = Served(broker)
    with ThreadPoolExecutor(2) as pool:
        for mode in ("legacy", "auto"):
            pool.submit(anyio.run, _one_call, served, mode, code, f"http-end-{mode}")
        with broker.wire() as wire:
            wait_until(
                lambda: (
                    sum(
                        str(entry["name"]).startswith("http-end-") and entry["state"] == "busy"
                        for entry in wire.ask("ls-sessions")["sessions"]
                    )
                    == 2
                ),
                "both run",
            )
            served.process.send_signal(signal.SIGTERM)
            _, err = served.process.communicate(timeout=20)
            assert b"Traceback" not in err, err
            opened.touch()
            for mode in ("legacy", "auto"):
                assert wire.ask("read", session=f"http-end-{mode}", eval_id=1, wait_ms=20_000).value == "'end'"


async def _one_call(served: Served, mode: str, code: str, session: str) -> None:
    with contextlib.suppress(Exception):  # however the client takes it that its server has gone
        async with served.client(mode) as client:
            await run(client, code, session)


async def test_progress_comes_over_http(served: Served, broker: BrokerProcess) -> None:
    opened = broker.directory / "http-progress"
    code = f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(opened)!r}): time.sleep(.01)"
    results: list[str | None] = []

    async def progress(_done: float, _total: float | None, message: str | None) -> None:
        results.append(message)
        opened.touch()

    async with served.client() as client:
        arguments = {"code": code, "session": "http-progress"}
        result: CallToolResult = await client.call_tool("eval", arguments, progress_callback=progress)
    assert not result.is_error
    assert results[0] == "begun"


def test_nobody_gets_in_without_the_token(served: Served) -> None:
    assert served.post() == 200
    assert served.post(Authorization="") == 401
    assert served.post(Authorization="Bearer wrong") == 401
    assert served.post(Authorization=served.token) == 401
    assert served.post(Authorization=f"Bearer {served.token}x") == 401


def test_a_page_of_another_site_gets_nothing(served: Served) -> None:
    assert served.post(Origin="http://evil.example") == 403
    assert served.post(Host="evil.example") == 421
    assert served.post(Host=f"evil.example:{served.port}") == 421
    assert served.post(Origin=f"http://localhost:{served.port}", Host=f"localhost:{served.port}") == 200


def test_the_token_is_the_users_own(served: Served) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o600
    command = Path(f"/proc/{served.process.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{served.process.pid}/environ").read_bytes()
    assert served.token.encode() not in command + environment
    assert len(served.token) >= 43


@pytest.mark.parametrize(
    "where", ["0.0.0.0:0", "192.0.2.1:80", "example.com:80", "127.0.0.1", "127.0.0.1:x", ":80", "[::]:0"]
)
def test_only_loopback_is_served(where: str) -> None:
    with pytest.raises(ReplError, match=r"loopback|HOST:PORT"):
        bind(where)


@pytest.mark.parametrize("where", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.0.0.2:0"])
def test_loopback_has_many_names(where: str) -> None:
    with bind(where) as listener:
        assert listener.getsockname()[1] > 0


def test_a_taken_port_is_said(served: Served) -> None:
    with pytest.raises(ReplError, match="cannot listen"):
        bind(f"127.0.0.1:{served.port}")


def test_a_token_is_made_once_and_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "token")
    first = load_token(path)
    assert load_token(path) == first
    os.chmod(path, 0o644)
    with pytest.raises(ReplError, match="others may read the token"):
        load_token(path)
    os.chmod(path, 0o600)
    Path(path).write_text("short")
    with pytest.raises(ReplError, match="no token in"):
        load_token(path)


def test_a_token_behind_a_link_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("x" * 43)
    (tmp_path / "token").symlink_to(tmp_path / "real")
    with pytest.raises(ReplError, match="cannot store a token"):
        load_token(str(tmp_path / "token"))

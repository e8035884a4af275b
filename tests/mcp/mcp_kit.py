"""Start of the server, and connections to it: by the SDK's own client, or by bare lines."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent

from kit import TIMEOUT_S, BrokerProcess

Connect = Callable[..., AbstractAsyncContextManager[Client]]
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


def server_parameters(broker: BrokerProcess, *args: str) -> StdioServerParameters:
    """Return the parameters with which a client starts the server."""
    command = ["-P", "-m", "replctl", "mcp", "--endpoint", broker.endpoint, *args]
    return StdioServerParameters(command=sys.executable, args=command, env=broker.environ, cwd=str(broker.directory))


def text(result: CallToolResult) -> str:
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def run(client: Client, code: str, session: str, **more: Any) -> CallToolResult:
    return await client.call_tool("eval", {"code": code, "session": session, **more})


def start_raw(broker: BrokerProcess, *args: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """The server as a bare process."""
    how = server_parameters(broker, *args)
    return subprocess.Popen(
        [how.command, *how.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=broker.environ,
        bufsize=0,
        cwd=cwd,
    )


def send_line(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()


def send_request(process: subprocess.Popen[bytes], method: str, number: int, **params: Any) -> None:
    send_line(process, json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode())


def receive(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], TIMEOUT_S)[0], "nothing was said"
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    answer: dict[str, Any] = json.loads(line)
    return answer


def finish(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    assert all(json.loads(line) for line in out.splitlines())

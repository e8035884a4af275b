"""The walk of an agent that has just been given replctl: installed in a fresh environment, one conversation, no person.

The client is the official SDK's. Claude Code and Codex start the same command (`test_install.py`), but what a model
makes of the answers is not tested here.
"""

from __future__ import annotations

import asyncio
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import TextContent

from peers import fetch

TRIES = 3
ROOT = Path(__file__).parents[2]
HELLO = "a,b\n1,2\n3,4\n"
FETCH = "import urllib.request as r; text = r.urlopen('http://{}/table.csv', timeout=10).read().decode()"


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """The installed command, in an environment that has nothing else."""
    home = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True, timeout=120)
    source = home / "source"  # building in the working tree would leave files there
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    fetch(str(home / "venv/bin/pip"), "install", "--quiet", str(source))
    yield home / "venv/bin/replctl"
    shutil.rmtree(home)


@pytest.fixture
def port() -> Iterator[int]:
    """A web server with one file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(HELLO)))
            self.end_headers()
            self.wfile.write(HELLO.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


async def converse(program: Path, home: Path) -> list[str]:
    """Return the texts of the answers to one conversation."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REPLCTL_")}
    environ |= {"REPLCTL_STATE_DIR": str(home / "state"), "REPLCTL_CONFIG": str(home / "config.toml")}
    calls: list[tuple[str, dict[str, object]]] = [
        ("eval", {"code": "import pandas"}),
        ("env", {"action": "add", "packages": ["pandas"]}),
        ("eval", {"code": "import pandas, io; pandas.__name__"}),
        ("eval", {"code": FETCH.format("other.test")}),
        ("eval", {"code": FETCH.format("data.test")}),
        ("eval", {"code": "int(pandas.read_csv(io.StringIO(text)).b.sum())"}),
    ]
    texts = []
    server = StdioServerParameters(command=str(program), args=["mcp"], env=environ, cwd=str(home))
    async with Client(stdio_client(server)) as client:
        for name, arguments in calls:
            for _ in range(TRIES if name == "env" else 1):  # registries have bad moments
                answer = await client.call_tool(name, arguments)
                if not answer.is_error:
                    break
            assert isinstance(answer.content[0], TextContent)
            texts.append(answer.content[0].text)
    return texts


def test_an_agent_installs_pandas_and_fetches_from_an_allowed_host_in_one_conversation(
    program: Path, port: int
) -> None:
    home = Path(tempfile.mkdtemp(prefix="rh-", dir="/tmp"))
    (home / "config.toml").write_text(
        '[sandbox]\nnetwork = "list"\nallowed-hosts = ["data.test"]\nprivate-networks = ["127.0.0.0/8"]\n'
        f'host-addresses = ["*.test=127.0.0.1:{port}"]\n'
    )
    try:
        texts = asyncio.run(asyncio.wait_for(converse(program, home), 240))
    finally:
        environ = os.environ | {"REPLCTL_STATE_DIR": str(home / "state"), "REPLCTL_CONFIG": str(home / "config.toml")}
        subprocess.run([program, "shutdown"], env=environ, check=True, timeout=60)
        shutil.rmtree(home)
    missing, added, imported, refused, fetched, total = texts
    assert "No module named 'pandas'" in missing
    assert "importable now: " in added
    assert "pandas" in added
    assert imported.startswith("'pandas'")
    assert "other.test was refused: it is not in sandbox.allowed-hosts" in refused
    assert "Error" not in fetched
    assert total.startswith("6")

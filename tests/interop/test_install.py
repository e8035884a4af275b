"""Files of `replctl install` and the plugin, as Claude Code and Codex themselves read them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers import HERE, Peers

PROGRAM = Path(sys.executable).with_name("replctl")
SECONDS = 60


class InstallUser:
    """A user with an empty home directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        self._environ = {
            **kept,
            "HOME": str(home),
            "REPLCTL_STATE_DIR": str(home / "s"),
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }

    def run(self, *command: str | Path) -> str:
        """The stdout of a command that ends well."""
        done = subprocess.run(
            command,
            env=self._environ,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def user() -> Iterator[InstallUser]:
    home = Path(tempfile.mkdtemp(prefix="ru-", dir="/tmp"))
    yield InstallUser(home)
    shutil.rmtree(home)


def claude(peers: Peers) -> Path:
    """Return the path of the program itself: `.bin` needs an install script, and none run here."""
    (program,) = peers.modules.glob("@anthropic-ai/claude-code-linux-*/claude")
    return program


def test_codex_reads_its_entry(peers: Peers, user: InstallUser) -> None:
    user.run(PROGRAM, "install", "--client", "codex", "--agent", "codex")
    (listed,) = json.loads(user.run(peers.modules / ".bin/codex", "mcp", "list", "--json"))
    assert (listed["name"], listed["enabled"]) == ("replctl", True)
    transport = listed["transport"]
    assert (transport["type"], transport["command"]) == ("stdio", str(PROGRAM))
    assert transport["args"] == ["mcp", "--agent", "codex"]
    assert "REPLCTL_STATE_DIR" in transport["env_vars"]
    assert (listed["startup_timeout_sec"], listed["tool_timeout_sec"]) == (20, 300)


def test_claude_code_connects_to_the_server_of_its_entry(peers: Peers, user: InstallUser) -> None:
    user.run(PROGRAM, "install", "--client", "claude")
    assert f"replctl: {PROGRAM} mcp - ✔ Connected" in user.run(claude(peers), "mcp", "list")
    result = user.run(claude(peers), "mcp", "get", "replctl")
    assert "Scope: User config" in result
    assert "Status: ✔ Connected" in result
    before = (user.home / ".claude.json").read_text()
    assert user.run(PROGRAM, "install", "--client", "claude") == ""  # Claude has written the file since
    assert (user.home / ".claude.json").read_text() == before


def test_claude_code_accepts_the_plugin_and_its_marketplace(peers: Peers, user: InstallUser) -> None:
    assert "Validation passed" in user.run(claude(peers), "plugin", "validate", HERE.parents[1] / "plugin")

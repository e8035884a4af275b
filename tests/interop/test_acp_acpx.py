"""acpx, a command-line client: it restarts the agent between calls, and finds the session again."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from acp_world import World, world
from kit import wait_until
from peers import Peers


class Acpx:
    """Calls of it in one world. Its helper process ends after `ttl` seconds without work."""

    def __init__(self, here: World, peers: Peers, ttl: int = 5) -> None:
        self.here = here
        script = peers.modules / "acpx" / "dist" / "cli.js"
        self._base = [
            peers.node,
            str(script),
            "--agent",
            shlex.join(here.agent),
            "--cwd",
            str(here.directory / "work"),
            "--ttl",
            str(ttl),
        ]

    def run(self, *args: str, code: int = 0) -> str:
        """Return the stdout; the exit code must be this one."""
        done = subprocess.run(
            [*self._base, *args],
            env=self.here.environ,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == code, (args, done.stdout, done.stderr)
        return done.stdout

    def begin(self, *args: str) -> subprocess.Popen[str]:
        """A call that goes on."""
        return subprocess.Popen(
            [*self._base, *args], env=self.here.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def say(self, text: str, *flags: str, code: int = 0) -> str:
        """Return the agent's answer to a prompt."""
        return self.run("--format", "quiet", *flags, text, code=code).strip()


@pytest.fixture
def acpx(peers: Peers) -> Iterator[Acpx]:
    with world() as here:
        yield Acpx(here, peers)


def test_acpx_runs_one_prompt_without_a_session(acpx: Acpx) -> None:
    assert acpx.run("--format", "quiet", "exec", "6*7").strip() == "42"


def test_acpx_keeps_a_session_over_restarts_of_the_agent(acpx: Acpx) -> None:
    session = acpx.run("sessions", "new").split()[-1]
    assert session.startswith("acp-")
    acpx.say("x = 41")
    assert acpx.say("x + 1") == "42"
    assert session in acpx.run("sessions", "list")
    assert "x + 1" in acpx.run("sessions", "history")
    wait_until(lambda: "running" not in acpx.run("status"), "the helper has ended with its agent", 30)
    assert acpx.say("x") == "41"
    acpx.run("sessions", "close")


def test_acpx_asks_for_permission_and_plans(acpx: Acpx) -> None:
    acpx.run("sessions", "new")
    assert "ask" in acpx.run("set-mode", "ask")
    assert acpx.say("1 + 1", "--approve-all") == "2"
    assert "Not run" in acpx.run("--deny-all", "1 + 2", code=0)
    acpx.run("set-mode", "plan")
    assert "plan mode" in acpx.run("1 + 3")
    assert "3 options" in acpx.run("set", "mode", "auto")
    assert acpx.say("1 + 4") == "5"


def test_acpx_shows_failures_and_cancels_in_time(acpx: Acpx) -> None:
    acpx.run("sessions", "new")
    acpx.say("x = 1")
    assert "ZeroDivisionError: division by zero" in acpx.run("1/0")
    assert "cancelled" in acpx.run("--timeout", "2", "while True: pass", code=3)
    assert acpx.say("x") == "1"


def test_acpx_cancels_from_another_call(acpx: Acpx) -> None:
    acpx.run("sessions", "new")
    running = acpx.begin("import time; time.sleep(60)")
    try:
        with acpx.here.broker.wire() as wire:

            def busy() -> bool:
                return any(each["state"] == "busy" for each in wire.ask("ls-sessions")["sessions"])

            wait_until(busy, "the code runs", 60)
        assert "cancel requested" in acpx.run("cancel")
        text, _ = running.communicate(timeout=60)
    finally:
        running.kill()
        running.communicate()
    assert "[done] cancelled" in text


def test_every_message_that_acpx_sees_is_json(acpx: Acpx) -> None:
    lines = acpx.run("--format", "json", "exec", "print('é'); 'ü'").splitlines()
    messages = [json.loads(line) for line in lines]
    assert any(each.get("result", {}).get("stopReason") == "end_turn" for each in messages)
    assert any("ü" in json.dumps(each, ensure_ascii=False) for each in messages)

"""A config file that changes under a broker that runs: `config reload`, SIGHUP, and a file that cannot be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from kit import UNSANDBOXED, BrokerProcess, wait_until


def write(broker: BrokerProcess, text: str) -> None:
    (broker.directory / "config.toml").write_text(UNSANDBOXED + text)


def command(broker: BrokerProcess, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "replctl", *words, "--endpoint", broker.endpoint],
        env=broker.environ,
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_what_can_change_does_and_the_rest_is_named(start: Callable[..., BrokerProcess]) -> None:
    broker = start(config="[limits]\nmax-sessions = 1\n", warm=0)
    with broker.wire() as wire:
        assert wire.run("x = 1", session="a").status == ["done"]
        assert "session-limit-reached" in wire.run("1", session="b").status
        write(broker, '[limits]\nmax-sessions = 2\n[metrics]\nlisten = "127.0.0.1:0"\n')
        ran = command(broker, "config", "reload")
        assert ran.stdout.splitlines() == ["reloaded: limits.max-sessions", "restart needed for: metrics.listen"]
        assert ran.returncode == 0
        assert wire.run("1", session="b").value == "1"
        assert wire.run("x", session="a").value == "1"
        again = wire.ask("reload-config")
        assert (again["reloaded"], again["needs-restart"]) == ([], ["metrics.listen"])
        write(broker, '[limits]\nmax-sessions = 2\n[[identities]]\nname = "ada"\n')
        last = wire.ask("reload-config")
        assert (last["reloaded"], last["needs-restart"]) == (["identities"], [])


def test_a_file_that_cannot_be_used_changes_nothing_and_the_broker_lives(start: Callable[..., BrokerProcess]) -> None:
    broker = start(warm=0)
    write(broker, "[limits]\nmax-sessions = 'many'\n")
    ran = command(broker, "config", "reload", "--json")
    result = json.loads(ran.stdout)
    assert (ran.returncode, result["code"]) == (2, "invalid-config")
    assert "limits.max-sessions: Expected `int`, got `str`" in result["err"]
    (broker.directory / "config.toml").unlink()
    with broker.wire() as wire:
        assert "which does not exist" in wire.ask("reload-config")["err"]
        assert wire.run("6*7").value == "42"


def test_a_hangup_signal_reloads_and_the_log_tells(start: Callable[..., BrokerProcess]) -> None:
    broker = start(config="[limits]\nmax-sessions = 1\n", warm=0)
    write(broker, "[limits]\nmax-sessions = 3\n")
    os.kill(broker.pid, signal.SIGHUP)
    wait_until(lambda: "read again: limits.max-sessions changed" in broker.log_text(), "the log says so")
    with broker.wire() as wire:
        assert wire.ask("describe")["limits"]["max-sessions"] == 3
        write(broker, "[limits\n")
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "cannot be used, nothing has changed" in broker.log_text(), "the log says why not")
        assert wire.run("6*7").value == "42"
    audit = broker.directory / "audit.ndjson"
    wait_until(lambda: audit.read_text().count('"op":"reload-config"') == 2, "the audit has both")

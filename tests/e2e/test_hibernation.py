"""Hibernation through a real broker: variables stored, processes ended, everything back with the next eval."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import BrokerProcess, Wire, is_alive, processes_with, wait_until
from replbroker.journal_lines import JournalHeader, encode_line

Start = Callable[..., BrokerProcess]


@pytest.fixture
def broker(start: Start) -> Iterator[BrokerProcess]:
    """A broker that hibernates a session after a fifth of a second. A shutdown leaves nothing behind."""
    found = start("broker.orphan-ttl-ms=60000", "session.hibernate-after-ms=200", sandbox=True)
    yield found
    assert found.stop() == 0
    wait_until(lambda: not processes_with(str(found.directory)), "the end of every process")
    assert stored(found) == []


def stored(broker: BrokerProcess) -> list[Path]:
    return list(broker.directory.glob("hibernated/*/*"))


def states(wire: Wire) -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in wire.ask("ls-sessions")["sessions"]}


def run_command(broker: BrokerProcess, *words: str) -> Any:
    command = [sys.executable, "-m", "replctl", *words, "--json", "--endpoint", broker.endpoint]
    done = subprocess.run(command, env=broker.environ, capture_output=True, text=True, timeout=60, cwd=broker.directory)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_idle_session_ends_its_processes_and_comes_back_with_its_variables(broker: BrokerProcess) -> None:
    with broker.wire() as wire:
        wire.run("import threading; x = [41]; lock = threading.Lock()\ndef more(): return x[0] + 1")
        worker = wire.ask("info", session="s")["info"]["worker-pid"]
        wait_until(lambda: states(wire) == {"s": "hibernated"}, "hibernation")
        wait_until(lambda: not is_alive(worker), "the end of its worker")
        assert [path.stat().st_mode & 0o777 for path in stored(broker)] == [0o600]
        back = wire.run("more()")
        assert (back.value, back["state"], back["epoch"]) == ("42", "restored", 2)
        assert back["not-restored"] == ["lock: lock: a lock belongs to its process"]
        assert stored(broker) == []
        assert wire.run("more()")["state"] == "kept"


def test_it_outlives_broker_and_machine_and_the_others_are_lost_once_and_said(broker: BrokerProcess) -> None:
    with broker.wire() as wire:
        wire.run("x = 41")
        wait_until(lambda: states(wire) == {"s": "hibernated"}, "hibernation")
        busy = wire.send("eval", session="busy", code="import time; time.sleep(1000)", **{"if-missing": "create"})
        wait_until(lambda: states(wire).get("busy") == "busy", f"the start of {busy}")
    broker.kill()
    for pid in processes_with(str(broker.directory)):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes_with(str(broker.directory)), "the end of every process")
    journal = next(broker.directory.glob("sessions-*.ndjson"))
    _, records = journal.read_bytes().split(b"\n", 1)
    journal.write_bytes(encode_line(JournalHeader(3, 1, 0, boot="another start of the machine")) + records)
    broker.start()
    assert (broker.ready["lost"], broker.ready["lost-cause"]) == (["busy"], "the machine was restarted")
    saved = run_command(broker, "ls", "--saved")
    assert [(each["name"], each["hibernated"]["count"]) for each in saved["sessions"]] == [("s", 1)]
    with broker.wire() as wire:
        assert wire.ask("new-session", name="busy")["cause"] == "the machine was restarted"
        assert wire.run("x + 1").value == "42"
    broker.kill()
    broker.start()
    assert broker.ready["lost"] == []


def test_by_request_from_the_command_line_and_closed_without_a_trace(start: Start) -> None:
    broker = start(sandbox=True)
    with broker.wire() as wire:
        wire.run("x = 41")
    reply = run_command(broker, "hibernate", "s")
    assert (reply["count"], reply["skipped"], reply["epoch"]) == (1, [], 2)
    assert len(stored(broker)) == 1
    run_command(broker, "close", "s")
    wait_until(lambda: stored(broker) == [], "the end of the file")


def test_a_time_that_is_not_below_that_of_closing_is_refused(start: Start) -> None:
    broker = start()
    command = [sys.executable, "-m", "replctl", "serve", "--endpoint", f"ipc://{broker.directory}/run/c.sock"]
    settings = ("session.hibernate-after-ms=5000", "limits.session-idle-timeout-ms=5000")
    words = [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run([*command, *words], env=broker.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is not less than limits.session-idle-timeout-ms = 5000" in done.stderr

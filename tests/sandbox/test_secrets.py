"""Secrets stand in their own files and nowhere else: no command line, no session's environment, no log, no record."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import USERS, begin, end
from kit import BrokerProcess, LineWire, free_tcp, own_address
from live_processes import LOOK_INSIDE, read_each
from replctl import Client
from replworker.sandbox.report import SandboxReport

IN_ENVIRON = "s3ntinel-of-the-environment"


class BrokerWithSecrets:
    """A broker that knows secrets of each kind, all of which were used."""

    def __init__(self, broker: BrokerProcess, token: str) -> None:
        self.broker = broker
        key = tomllib.loads((broker.directory / "ada.key").read_text())
        server = tomllib.loads((broker.directory / "keys/server.toml").read_text())
        self.secrets = {
            "ada's key": key["secret"],
            "the broker's key": server["secret"],
            "bob's token": token,
            "the broker's environment": IN_ENVIRON,
        }
        self.own_files = {"ada.key", "keys/server.toml", "bob.token"}


@pytest.fixture(scope="module", params=USERS)
def place(request: pytest.FixtureRequest, report: SandboxReport) -> Iterator[BrokerWithSecrets]:
    assert report.ok
    patch = pytest.MonkeyPatch()
    patch.setenv("SECRET_TOKEN", IN_ENVIRON)
    broker = begin(request.param, "broker.tcp=0.0.0.0:0", more_endpoints=[free_tcp()], keys=["ada"])
    patch.undo()
    try:
        command = [sys.executable, "-m", "replctl", "keys", "token", "bob"]
        subprocess.run(command, cwd=broker.directory, env=broker.environ, check=True, stdout=subprocess.DEVNULL)
        token = (broker.directory / "bob.token").read_text().strip()
        clients, lines = broker.ready["listening"][1:]
        with Client(clients, key=str(broker.directory / "ada.key"), start=False) as ada:
            assert ada.eval("6*7", session="hers").value == "42"
        line = LineWire(f"lines+tcp://{own_address()}:{lines.rpartition(':')[2]}")
        assert line.ask("hello", token=token[::-1]).status == ["done", "error", "unauthorized"]
        assert line.ask("hello", token=token)["identity"] == "bob"
        assert line.run("1", session="his").value == "1"
        line.close()
        yield BrokerWithSecrets(broker, token)
    finally:
        end(broker)


def holding(secrets: dict[str, str], texts: dict[str, bytes]) -> list[tuple[str, str]]:
    """Return the files that hold each secret."""
    return [
        (name, where) for where, text in texts.items() for name, secret in secrets.items() if secret.encode() in text
    ]


def named(name: str, texts: dict[int, bytes]) -> dict[str, bytes]:
    """Return files below /proc with their names, as a failure shall tell them."""
    return {f"{name} of {pid}": text for pid, text in texts.items()}


def test_no_command_line_has_one(place: BrokerWithSecrets) -> None:
    texts = read_each(place.broker.process_tree(), "cmdline", at_least=5)
    assert holding(place.secrets, named("cmdline", texts)) == []


def test_no_process_of_a_session_has_one_in_its_environment(place: BrokerWithSecrets) -> None:
    with place.broker.wire() as wire:
        wire.run("1")
        processes = [each["pid"] for each in wire.ask("stack", session="s")["processes"]]
        inside = wire.ask("info", session="s")["info"]["pid"]
        assert inside in processes
        environs = named("environ", read_each(processes, "environ"))
        assert environs[f"environ of {inside}"]
        seen = {"what the session sees": wire.run(LOOK_INSIDE).out.encode()}
        wire.ask("close", session="s")
    assert holding(place.secrets, environs | seen) == []
    broker = {"the broker": Path(f"/proc/{place.broker.pid}/environ").read_bytes()}
    assert holding(place.secrets, broker) == [("the broker's environment", "the broker")]  # so it was there to be had


def test_no_file_of_the_broker_has_one_but_their_own(place: BrokerWithSecrets) -> None:
    directory = place.broker.directory
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    assert {"log", "audit.ndjson"} <= set(files)
    assert any(b"6*7" in path.read_bytes() for name, path in files.items() if name.startswith("transcripts/"))
    assert b"hello" in files["audit.ndjson"].read_bytes()
    texts = {name: path.read_bytes() for name, path in files.items() if name not in place.own_files}
    assert holding(place.secrets, texts) == []
    assert [oct(files[name].stat().st_mode & 0o777) for name in sorted(place.own_files)] == ["0o600"] * 3

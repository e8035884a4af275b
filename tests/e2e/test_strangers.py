"""Unidentified clients keep no identified one out, and a connection keeps its identity to its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit import BrokerProcess, LineWire, identities_as_root, own_address, wait_until

NAMES = ("ada", "bob")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker that lines reach from beyond loopback, where the kernel vouches for nobody."""
    broker = BrokerProcess(
        Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp")),
        "broker.tcp=0.0.0.0:0",
        "limits.max-connections=20",
        "limits.first-request-ms=3000",
        "limits.rate-limit-per-min=200",
        config=identities_as_root(*NAMES),
    )
    for name in NAMES:
        command = [sys.executable, "-m", "replctl", "keys", "token", name]
        subprocess.run(command, cwd=broker.directory, env=broker.environ, check=True, stdout=subprocess.DEVNULL)
    yield broker
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(broker.directory)


def stranger(broker: BrokerProcess) -> LineWire:
    return LineWire(f"lines+tcp://{own_address()}:{broker.listening['tcp'].rpartition(':')[2]}")


def token(broker: BrokerProcess, name: str) -> str:
    return (broker.directory / f"{name}.token").read_text().strip()


def test_strangers_who_ask_too_often_do_not_keep_a_token_out(broker: BrokerProcess) -> None:
    with stranger(broker) as flood, stranger(broker) as late:
        while flood.ask("ping").status[-1] == "pong":
            pass
        assert flood.ask("ping").status[-1] == "rate-limited"
        assert late.ask("hello", token=token(broker, "bob"))["identity"] == "bob"
        assert late.run("6*7", session=None).value == "42"


def test_strangers_who_stay_make_room_for_who_says_its_name_and_are_let_go(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        crowd = [stack.enter_context(stranger(broker)) for _ in range(10)]
        assert [each.ask("ping").status[-1] for each in crowd] == ["pong"] * 10
        late = stack.enter_context(stranger(broker))
        assert late.ask("hello", token=token(broker, "bob"))["identity"] == "bob"
        assert crowd[0].has_ended()
        assert crowd[-1].ask("ping").status[-1] == "pong"
        assert crowd[-1].has_ended()  # in time: it has asked, and not said who it is
        assert late.run("6*7", session=None).value == "42"


def test_connections_of_a_token_are_counted_as_its_name_is_said(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        answers = []
        for _ in range(11):
            one = stack.enter_context(stranger(broker))
            answers.append((one, one.ask("hello", token=token(broker, "ada")).last))
        assert [last["status"] for _, last in answers[:10]] == [["done"]] * 10
        excess, refused = answers[-1]
        assert refused["status"] == ["done", "error", "connection-limit-reached"]
        assert (refused["limit-value"], refused["quota-of"]) == (10, "ada")
        assert excess.has_ended()
        bob = stack.enter_context(stranger(broker))
        assert bob.ask("hello", token=token(broker, "bob"))["identity"] == "bob"
    with stranger(broker) as again:
        wait_until(lambda: _let_in(broker), "there is room again", 5.0)
        assert again.ask("hello", token=token(broker, "ada"))["identity"] == "ada"


def _let_in(broker: BrokerProcess) -> bool:
    with stranger(broker) as one:
        return one.ask("hello", token=token(broker, "ada")).status == ["done"]


def test_a_connection_that_has_shown_a_token_does_not_become_another(broker: BrokerProcess) -> None:
    with stranger(broker) as ada, broker.wire() as own:
        for _ in range(2):
            assert ada.ask("hello", token=token(broker, "ada"))["identity"] == "ada"
        assert ada.ask("new-session", name="kept").status == ["done"]
        ada.send("subscribe", session="kept", id="events")
        assert ada.receive()["status"] == ["subscribed"]
        refused = ada.ask("hello", token=token(broker, "bob"))
        assert refused.status == ["done", "error", "invalid-request"]
        command = [sys.executable, "-m", "replctl", "keys", "revoke", "ada"]
        subprocess.run(command, cwd=broker.directory, env=broker.environ, check=True, stdout=subprocess.DEVNULL)
        assert ada.answer("events").status == ["done", "error", "unauthorized"]
        assert ada.ask("hello", token=token(broker, "bob"))["identity"] == "bob"
        assert own.ask("close", session="ada/kept").status == ["done", "session-closed"]

"""Named environments are listed and removed by whose they are, and by nobody while a session has them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import BrokerProcess, free_tcp, wait_until
from replctl import Client, ReplError


def make(broker: BrokerProcess, name: str) -> Path:
    """An environment as the broker keeps it, without the time that a whole one takes."""
    place = broker.directory / "envs" / name
    (place / "bin").mkdir(parents=True)
    (place / "bin/python").symlink_to(sys.executable)
    return place


def leftovers(broker: BrokerProcess) -> list[Path]:
    """Return the contents of `envs/` and of the directories being deleted."""
    envs = broker.directory / "envs"
    return [path for directory in (envs, envs / ".removed") for path in directory.iterdir() if path.name != ".removed"]


def audited(broker: BrokerProcess) -> list[tuple[str, str, str]]:
    records = [json.loads(line) for line in (broker.directory / "audit.ndjson").read_text().splitlines()]
    return [(each["op"], each["session"], each["outcome"]) for each in records]


def test_what_a_session_has_stays_and_room_comes_back_with_its_removal(start: Callable[..., BrokerProcess]) -> None:
    broker = start("limits.max-identity-environments=1")
    make(broker, "one")
    with broker.wire() as wire:
        wire.ask("new-session", name="a", runtime="@one")
        assert wire.ask("ls-environments")["environments"] == [
            {"environment": "@one", "owner": f"uid:{os.getuid()}", "sessions": ["a"], "session-count": 1}
        ]
        refused = wire.ask("remove-environment", environment="@one")
        assert refused.status == ["done", "error", "environment-in-use"]
        assert refused["err"] == "sessions have environment @one: a"
        assert wire.run("6*7", session="a").value == "42"
        assert wire.ask("new-session", name="b", runtime="@two").status[-1] == "environment-limit-reached"
        wire.ask("close", session="a")
        assert wire.ask("remove-environment", environment="@one")["environment"] == "@one"
        assert wire.ask("ls-environments")["environments"] == []
        wait_until(lambda: not leftovers(broker), "nothing is left of it")
        assert wire.ask("remove-environment", environment="@one").status[-1] == "environment-not-found"
        make(broker, "two")
        assert wire.ask("new-session", name="b", runtime="@two")["created"] is True
        assert wire.ask("remove-environment", environment="@two", mode="plan").status[-1] == "plan-mode"


def test_of_two_identities_each_lists_and_removes_its_own_and_an_admin_all(start: Callable[..., BrokerProcess]) -> None:
    broker = start("broker.audit=true", more_endpoints=[free_tcp()], keys=["ada", "bob"])
    for name in ("mine", "@ada/data", "@bob/data"):
        make(broker, name)
    at = broker.listening["tcp"]
    with (
        Client(at, key=str(broker.directory / "ada.key")) as ada,
        Client(at, key=str(broker.directory / "bob.key")) as bob,
        broker.wire() as own,
    ):
        assert [[each.environment for each in who.environments()] for who in (ada, bob)] == [
            ["@ada/data"],
            ["@bob/data"],
        ]
        reply = own.ask("ls-environments")["environments"]
        assert [each["environment"] for each in reply] == ["@ada/data", "@bob/data", "@mine"]
        for theirs in ("@bob/data", "@bob/none", f"@uid:{os.getuid()}/mine", "@mine"):
            with pytest.raises(ReplError, match="environment-not-found"):
                ada.remove_environment(theirs)
        bob.new("hers", runtime="@data")
        assert own.ask("remove-environment", environment="@bob/data")["err"].endswith("bob/hers")
        assert ada.remove_environment("@data").environment == "@ada/data"
        bob.close("hers")
        assert own.ask("remove-environment", environment="@bob/data")["environment"] == "@bob/data"
        assert ada.environments() == bob.environments() == []
    assert (broker.directory / "envs/mine/bin/python").exists()
    removed = ("remove-environment", "@bob/data", "ok")
    wait_until(lambda: removed in audited(broker), "the audit has it")


def test_a_large_one_is_gone_at_once_and_holds_up_nobody(start: Callable[..., BrokerProcess]) -> None:
    broker = start("limits.rate-limit-per-min=0")
    place = make(broker, "large")
    for number in range(100):
        (place / str(number)).mkdir()
        for file in range(200):
            (place / f"{number}/{file}").touch()
    with broker.wire() as wire:
        wire.run("1")
        assert wire.ask("remove-environment", environment="@large").status == ["done"]
        assert not place.exists()
        slowest = 0.0
        deadline = time.monotonic() + 60
        while leftovers(broker) and time.monotonic() < deadline:
            begun = time.monotonic()
            assert wire.ask("ping").status == ["done", "pong"]
            slowest = max(slowest, time.monotonic() - begun)
        assert leftovers(broker) == []
        assert slowest < 1


def test_what_a_killed_broker_had_not_deleted_the_next_one_deletes(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    make(broker, ".removed/0123456789abcdef")
    stays = make(broker, "stays")
    with broker.wire() as wire:
        assert [each["environment"] for each in wire.ask("ls-environments")["environments"]] == ["@stays"]
    broker.kill()
    broker.start()
    wait_until(lambda: not list((broker.directory / "envs/.removed").iterdir()), "it is deleted")
    assert (stays / "bin/python").exists()


def test_symlinks_in_it_lead_nowhere(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    (make(broker, "evil") / "link").symlink_to(broker.directory / "precious")
    (broker.directory / "precious").mkdir()
    (broker.directory / "precious/file").touch()
    (broker.directory / "envs/whole").symlink_to(broker.directory / "precious")
    with broker.wire() as wire:
        assert wire.ask("remove-environment", environment="@whole").status[-1] == "environment-not-found"
        for name in ("@..", "@../precious", "@.removed", "@evil/link", "@/evil"):
            assert "error" in wire.ask("remove-environment", environment=name).status
        assert wire.ask("remove-environment", environment="@evil").status == ["done"]
    wait_until(lambda: [path.name for path in leftovers(broker)] == ["whole"], "only the link is left")
    assert (broker.directory / "precious/file").exists()

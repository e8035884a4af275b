"""Whose a session is: the installed command as two people, one of whom owns it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kit import Broker, free_tcp, wait_until
from replctl import AsyncClient, Client


@dataclass(frozen=True)
class Person:
    """Somebody with a key, at a shell."""

    broker: Broker
    name: str

    @property
    def key(self) -> str:
        return str(self.broker.folder / f"{self.name}.key")

    @property
    def endpoint(self) -> str:
        return self.broker.listening["tcp"]

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "replctl", *args, "--endpoint", self.endpoint, "--no-start"], text=True,
            env={**self.broker.environ, "REPLCTL_KEY_FILE": self.key}, capture_output=True, timeout=30, check=False,
        )  # fmt: skip

    def told(self, *args: str) -> Any:
        return json.loads(self.run(*args, "--json").stdout)

    def sees(self) -> list[str]:
        return [each["name"] for each in self.told("ls")["sessions"]]


@pytest.fixture
def people(start: Callable[..., Broker]) -> tuple[Person, Person]:
    broker = start(more_endpoints=[free_tcp()], keys=["ada", "bob"])
    return Person(broker, "ada"), Person(broker, "bob")


def test_status_says_who_one_is(people: tuple[Person, Person]) -> None:
    ada, bob = people
    assert (ada.told("status")["identity"], bob.told("status")["identity"]) == ("ada", "bob")
    assert ada.run("status").stdout.splitlines()[0].endswith("; you are ada")


def test_a_session_is_nobody_elses_until_it_is_shared(people: tuple[Person, Person]) -> None:
    ada, bob = people
    ada.run("new", "work")
    assert ada.run("eval", "-s", "work", "x = 6").returncode == 0
    refused = bob.run("eval", "-s", "work", "x")
    assert (refused.returncode, "belongs to somebody else" in refused.stderr) == (5, True)
    assert (bob.sees(), bob.run("info", "work").returncode) == ([], 5)

    assert ada.run("share", "work", "read", "--with", "bob").stdout == "bob: read\n"
    assert (bob.sees(), bob.told("info", "work")["info"]["shares"]) == (["work"], {"bob": "read"})
    assert bob.told("history", "work")["count"] == 1
    assert bob.run("eval", "-s", "work", "x").returncode == 5
    assert bob.run("reset", "work").returncode == 5

    assert ada.told("share", "work", "write", "--with", "bob")["shares"] == {"bob": "write"}
    assert bob.run("eval", "-s", "work", "x * 7").stdout == "42\n"
    assert bob.run("share", "work", "write").returncode == 5

    taken = ada.run("share", "work", "none", "--with", "bob")
    assert (taken.stdout, taken.stderr) == ("", "replctl: session 'work' is its owner's alone\n")
    assert (bob.sees(), bob.run("eval", "-s", "work", "x").returncode) == ([], 5)


@pytest.mark.parametrize(("level", "exit_code"), [("read", 5), ("write", 0)])
def test_a_session_can_be_opened_shared_with_everybody(
    people: tuple[Person, Person], level: str, exit_code: int
) -> None:
    ada, bob = people
    assert ada.run("new", "open", "--share", level).stdout == "open\n"
    assert ada.told("share", "open", level)["shares"] == {"*": level}
    assert (bob.sees(), bob.run("eval", "-s", "open", "1").returncode) == (["open"], exit_code)


def test_a_session_that_is_handed_over_is_the_others(people: tuple[Person, Person]) -> None:
    ada, bob = people
    ada.run("new", "work")
    ada.run("eval", "-s", "work", "x = 42")
    assert bob.run("hand-over", "work", "--to", "bob").returncode == 5
    assert ada.run("hand-over", "work", "--to", "bob").stdout == "bob\n"
    assert bob.run("eval", "-s", "work", "x").stdout == "42\n"
    assert ada.run("eval", "-s", "work", "x").returncode == 5
    assert bob.told("hand-over", "work", "--to", "ada")["identity"] == "ada"
    assert (ada.sees(), bob.sees()) == (["work"], [])


def test_what_is_refused_to_somebody_is_in_the_audit(people: tuple[Person, Person]) -> None:
    ada, bob = people
    ada.run("new", "work")
    assert bob.run("eval", "-s", "work", "1").returncode == 5
    audit = [sys.executable, "-m", "replctl", "audit", "--json", "--outcome", "forbidden"]

    def records() -> list[Any]:
        told = subprocess.run(audit, env=ada.broker.environ, capture_output=True, timeout=20, check=True).stdout
        return [json.loads(line) for line in told.splitlines()]

    found = wait_until(records, "the refusal is written down")
    assert [(each["op"], each["session"], each["identity"]) for each in found] == [("eval", "work", "bob")]
    table = subprocess.run(audit[:4], env=ada.broker.environ, capture_output=True, timeout=20, check=True).stdout
    assert b" bob " in table


def test_both_clients_share_and_hand_over(people: tuple[Person, Person]) -> None:
    ada, _ = people

    async def awaited() -> tuple[Any, Any]:
        async with AsyncClient(ada.endpoint, key=ada.key, start=False) as client:
            shares = (await client.share("work", "write", "bob")).shares
            return shares, (await client.hand_over("work", "bob")).identity

    with Client(ada.endpoint, key=ada.key, start=False) as client:
        client.new("work")
        assert client.share("work", "read").shares == {"*": "read"}
        assert asyncio.run(awaited()) == ({"*": "read", "bob": "write"}, "bob")
        assert [each.identity for each in client.sessions()] == ["bob"]  # everybody may still read it

"""Ownership of a session: the installed command run by its owner and by another user."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kit import BrokerProcess, free_tcp, wait_until
from replctl import AsyncClient, Client


@dataclass(frozen=True)
class SharingUser:
    """A user with a key, at a shell."""

    broker: BrokerProcess
    name: str

    @property
    def key(self) -> str:
        return str(self.broker.directory / f"{self.name}.key")

    @property
    def endpoint(self) -> str:
        return self.broker.listening["tcp"]

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "replctl", *args, "--endpoint", self.endpoint, "--no-start"],
            text=True,
            env={**self.broker.environ, "REPLCTL_KEY_FILE": self.key},
            capture_output=True,
            timeout=30,
            check=False,
        )

    def run_json(self, *args: str) -> Any:
        return json.loads(self.run(*args, "--json").stdout)

    def visible_sessions(self) -> list[str]:
        return [each["ref"] for each in self.run_json("ls")["sessions"]]


@pytest.fixture
def people(start: Callable[..., BrokerProcess]) -> tuple[SharingUser, SharingUser]:
    broker = start(more_endpoints=[free_tcp()], keys=["ada", "bob"])
    return SharingUser(broker, "ada"), SharingUser(broker, "bob")


def test_status_says_who_one_is(people: tuple[SharingUser, SharingUser]) -> None:
    ada, bob = people
    assert (ada.run_json("status")["identity"], bob.run_json("status")["identity"]) == ("ada", "bob")
    assert ada.run("status").stdout.splitlines()[0].endswith("; you are ada")


def test_a_session_is_nobody_elses_until_it_is_shared(people: tuple[SharingUser, SharingUser]) -> None:
    ada, bob = people
    ada.run("new", "work")
    assert ada.run("eval", "-s", "work", "x = 6").returncode == 0
    for reference in ("work", "ada/work", ada.run_json("ls")["sessions"][0]["session"]):
        missing, nothing = bob.run("info", reference), bob.run("info", "nothing")
        assert (missing.returncode, nothing.returncode) == (4, 4)
        assert missing.stderr == nothing.stderr.replace("nothing", reference)
    assert (bob.visible_sessions(), bob.run("eval", "-s", "ada/work", "x").returncode) == ([], 4)

    assert ada.run("share", "work", "read", "--with", "bob").stdout == "bob: read\n"
    assert (bob.visible_sessions(), bob.run_json("info", "ada/work")["info"]["shares"]) == (
        ["ada/work"],
        {"bob": "read"},
    )
    assert bob.run_json("history", "ada/work")["count"] == 1
    assert bob.run("eval", "-s", "ada/work", "x").returncode == 5
    assert bob.run("reset", "ada/work").returncode == 5

    assert ada.run_json("share", "work", "write", "--with", "bob")["shares"] == {"bob": "write"}
    assert bob.run("eval", "-s", "ada/work", "x * 7").stdout == "42\n"
    assert bob.run("share", "ada/work", "write").returncode == 5
    assert bob.run("eval", "-s", "ada/work", "input()", "--stdin", "hello").stdout == "'hello'\n"

    taken = ada.run("share", "work", "none", "--with", "bob")
    assert (taken.stdout, taken.stderr) == ("", "replctl: session 'work' is not shared\n")
    assert (bob.visible_sessions(), bob.run("eval", "-s", "ada/work", "x").returncode) == ([], 4)


def test_each_has_its_own_names_and_an_admin_falls_into_nobodys(people: tuple[SharingUser, SharingUser]) -> None:
    ada, _ = people
    for session in ("work", "default"):
        for person in people:
            assert person.run("eval", "-s", session, f"x = {person.name!r}").returncode == 0
        assert [person.run("eval", "-s", session, "x").stdout for person in people] == ["'ada'\n", "'bob'\n"]
    with Client(ada.broker.endpoint, agent="cli", start=False) as admin:
        assert admin.eval("'x' in globals()").value == "False"
        assert admin.eval("x", session="bob/work").value == "'bob'"
        assert sorted(each.ref for each in admin.sessions() if each.name == "work") == ["ada/work", "bob/work"]
    shown = ada.run("ls").stdout
    assert "bob" not in shown
    assert [" ada " in line for line in shown.splitlines()] == [False, True, True]


def test_a_session_is_not_handed_to_who_has_one_of_its_name(people: tuple[SharingUser, SharingUser]) -> None:
    ada, bob = people
    for person in people:
        person.run("new", "work")
    ada.run("transfer", "work", "--to", "bob")
    refused = bob.run("transfer", "ada/work", "--to", "bob")
    assert (refused.returncode, "bob has one named work" in refused.stderr) == (4, True)
    assert (ada.visible_sessions(), bob.visible_sessions()) == (["work"], ["ada/work", "work"])


@pytest.mark.parametrize(("level", "exit_code"), [("read", 5), ("write", 0)])
def test_a_session_can_be_opened_shared_with_everybody(
    people: tuple[SharingUser, SharingUser], level: str, exit_code: int
) -> None:
    ada, bob = people
    assert ada.run("new", "open", "--share", level).stdout == "open\n"
    assert ada.run_json("share", "open", level)["shares"] == {"*": level}
    assert (bob.visible_sessions(), bob.run("eval", "-s", "ada/open", "1").returncode) == (["ada/open"], exit_code)


def test_a_session_that_is_handed_over_is_the_others(people: tuple[SharingUser, SharingUser]) -> None:
    ada, bob = people
    ada.run("new", "work")
    ada.run("eval", "-s", "work", "x = 42")
    assert bob.run("transfer", "ada/work", "--to", "bob").returncode == 4
    ada.run("share", "work", "write")
    assert "offered to bob" in ada.run("transfer", "work", "--to", "bob").stderr
    assert ada.run("eval", "-s", "work", "x").stdout == "42\n"
    assert bob.run("transfer", "ada/work", "--to", "bob").stdout == "bob\n"
    assert bob.run("eval", "-s", "work", "x").stdout == "42\n"
    assert ada.run("eval", "-s", "bob/work", "x").returncode == 4
    assert bob.run_json("transfer", "work", "--to", "ada")["offered-to"] == "ada"
    assert bob.run_json("transfer", "work", "--to", "bob")["offered-to"] is None
    assert (ada.visible_sessions(), bob.visible_sessions()) == ([], ["work"])


def test_nobody_finds_a_session_of_anothers_making_among_its_own(people: tuple[SharingUser, SharingUser]) -> None:
    ada, bob = people
    ada.run("new", "work")
    ada.run("share", "work", "write", "--with", "ada")
    ada.run("transfer", "work", "--to", "bob")
    assert bob.run_json("eval", "-s", "work", "secret = 1")["created"] is True
    assert bob.visible_sessions() == ["ada/work", "work"]
    assert ada.run("eval", "-s", "bob/work", "secret").returncode == 4


def test_what_is_refused_to_somebody_is_in_the_audit(people: tuple[SharingUser, SharingUser]) -> None:
    ada, bob = people
    ada.run("new", "work", "--share", "read")
    assert bob.run("eval", "-s", "ada/work", "1").returncode == 5
    audit = [sys.executable, "-m", "replctl", "audit", "--json", "--outcome", "forbidden"]

    def records() -> list[Any]:
        result = subprocess.run(audit, env=ada.broker.environ, capture_output=True, timeout=20, check=True).stdout
        return [json.loads(line) for line in result.splitlines()]

    found = wait_until(records, "the refusal is written down")
    assert [(each["op"], each["session"], each["identity"]) for each in found] == [("eval", "ada/work", "bob")]
    table = subprocess.run(audit[:4], env=ada.broker.environ, capture_output=True, timeout=20, check=True).stdout
    assert b" bob " in table


def test_both_clients_share_and_transfer(people: tuple[SharingUser, SharingUser]) -> None:
    ada, _ = people

    async def awaited() -> tuple[Any, Any]:
        async with AsyncClient(ada.endpoint, key=ada.key, start=False) as client:
            shares = (await client.share("work", "write", "bob")).shares
            return shares, (await client.transfer("work", "bob")).offered_to

    with Client(ada.endpoint, key=ada.key, start=False) as client:
        client.new("work")
        assert client.share("work", "read").shares == {"*": "read"}
        assert asyncio.run(awaited()) == ({"*": "read", "bob": "write"}, "bob")
        assert [each.owner for each in client.sessions()] == ["ada"]

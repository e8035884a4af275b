"""Introspection, clients that come and go, listeners, and what is held after all of it (scenarios 163 to 176)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from kit import wait_until
from replwire.requests import OPS
from scenarios import scenario
from transports import KINDS, BrokerSite, BrokerSites

Open = Callable[..., BrokerSite]
QUIET = ("limits.rate-limit-per-min=0", "broker.warm-workers=2")


@scenario(163)
def test_describe_tells_every_op_and_its_fields(wire: Any) -> None:
    answer = wire.ask("describe")
    assert len(answer.messages) == 1
    ops = answer["ops"]
    assert ops.keys() == OPS.keys()
    assert ops["eval"]["requires"] == ["code"]
    assert "session" in ops["eval"]["optional"]
    assert "value" in ops["eval"]["returns"]
    assert all(op["doc"] for op in ops.values())
    assert (answer["encodings-available"], answer["encoding-current"]) == (["json"], "json")


@scenario(164)
def test_a_ping_is_one_message_and_opens_nothing(wire: Any) -> None:
    answer = wire.ask("ping")
    assert answer.messages == [{"id": answer["id"], "status": ["done", "pong"]}]
    assert wire.ask("ls-sessions")["sessions"] == []


@scenario(167)
def test_a_client_that_vanishes_in_the_middle_harms_nobody(wire: Any, site: Open) -> None:
    """REPLy's spec wants its eval cancelled; here it goes on, and anybody may read it."""
    with site().wire() as other:
        request = other.send("eval", code="x = input()\nx", session="s", if_missing="create")
        other.until(request, "need-input")
    assert wire.run("1+1", session="other").value == "2"
    assert wire.ask("stdin", session="s", input="on\n")["delivered"] == ["s"]
    assert wire.ask("read", session="s", eval_id=1, wait_ms=20_000).value == "'on'"


@scenario(173)
def test_all_listeners_share_sessions(sites: BrokerSites) -> None:
    """Of the real ones; the broker in memory has one listener."""
    wires = [sites.site(kind, *QUIET).wire() for kind in KINDS if kind != "memory"]
    for number, writer in enumerate(wires):
        writer.run(f"x = {number}")
        assert [reader.run("x").value for reader in wires] == [str(number)] * len(wires)
    wires[0].ask("close", session="s")
    assert wires[1].ask("ls-sessions")["sessions"] == []
    for wire in wires:
        wire.close()


def _life(wire: Any, name: str) -> None:
    """Use a session as an agent does, with failures at the end."""
    assert wire.ask("new-session", name=name).status == ["done"]
    assert wire.run("x = 1; x", session=name).value == "1"
    assert wire.run("1/0", session=name)["ex"]["type"] == "ZeroDivisionError"
    request = wire.send("eval", code="input()", session=name)
    wire.until(request, "need-input")
    assert wire.ask("interrupt", session=name)["interrupted"] == [name]
    assert wire.answer(request).status == ["done", "interrupted"]
    assert wire.ask("close", session=name).status == ["done", "session-closed"]


@pytest.mark.parametrize("kinds", [("zmq", "tcp", "unix"), ("memory",)], ids="+".join)
@scenario(176)
def test_a_mixed_load_leaves_the_descriptors_as_they_were(sites: BrokerSites, kinds: tuple[str, ...]) -> None:
    """REPLy's own test of this can never fail; this one counts exactly."""
    site, warm = sites.site(kinds[0], *QUIET), 2

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{site.pid()}/fd"))

    def calm() -> bool:
        with site.wire() as wire:
            stats = wire.ask("stats")["stats"]
            if stats["workers"]["warm"] > warm:  # sessions came and went faster than workers: use one up
                wire.run("1", session=None)
            spare = {"starting": 0, "warm": warm, "assigned": 0}
            return bool(stats["workers"] == spare and stats["connections"] == 1)

    counts = []
    for number in range(4):
        wires = [sites.site(kind, *QUIET).wire() for kind in kinds]
        for turn in range(8 // len(kinds)):
            for wire in wires:
                _life(wire, f"s{number}-{turn}-{wires.index(wire)}")
        for wire in wires:
            wire.close()
        wait_until(calm, "the pool is what it was")
        counts.append(descriptors())
    least = min(counts)  # some workers may still be dying when they are counted
    assert wait_until(lambda: descriptors() <= least, f"descriptors are given back: {counts}")
    assert site.log_text().count("internal error") == 0

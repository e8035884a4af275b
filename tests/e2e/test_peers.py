"""A client is its connection: no name that it chooses for itself makes it another's, or brings it another's answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from kit import TIMEOUT_S, BrokerProcess, LineWire, Wire, free_tcp, wait_until
from replctl import Client

OTHER_UID = 65534
Start = Callable[..., BrokerProcess]

# Another client: whose user it is, where to, its key file or "", and a list of [routing id in hex, request] that it asks
# one after the other, each on a connection of its own that stays open until its stdin is closed.
ASK = """
import json, sys, os, zmq
uid, url, key, asked = int(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
context = zmq.Context()
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
answers = []
for routing_id, request in asked:
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    if routing_id:
        socket.routing_id = bytes.fromhex(routing_id)
    if key:
        known = json.loads(key)
        socket.curve_serverkey, socket.curve_publickey = known["server"].encode(), known["public"].encode()
        socket.curve_secretkey = known["secret"].encode()
    socket.connect(url)
    socket.send_json(request)
    answers.append(json.loads(socket.recv()) if socket.poll(5000) else None)
print(json.dumps(answers), flush=True)
sys.stdin.read()
late = [json.loads(frame) for each in [socket] if each.poll(0) for frame in each.recv_multipart()]
print(json.dumps(late))
context.destroy(linger=0)
"""


class Stranger:
    """Another user's client, which holds its connections until it is let go."""

    def __init__(self, url: str, asked: list[tuple[bytes, dict[str, Any]]], uid: int, key: str = "") -> None:
        encoded = json.dumps([(name.hex(), request) for name, request in asked])
        self._process = subprocess.Popen(
            [sys.executable, "-c", ASK, str(uid), url, key, encoded], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.answers = json.loads(self._process.stdout.readline())

    def let_go(self) -> list[dict[str, Any]]:
        """End it; what has come to its last connection since."""
        out, _ = self._process.communicate(timeout=TIMEOUT_S)
        found: list[dict[str, Any]] = json.loads(out)
        return found


def names() -> list[bytes]:
    """Return internal names of the broker's connections, real and possible."""
    return [prefix + number.to_bytes(8, "big") for prefix in (b"L", b"Z") for number in range(1, 9)]


def key_of(broker: BrokerProcess, name: str) -> str:
    lines = (line.split(" = ") for line in (broker.directory / f"{name}.key").read_text().splitlines())
    return json.dumps({field: text.strip("'") for field, text in lines})


@pytest.fixture(params=[pytest.param("uid", marks=pytest.mark.needs_root("to be another user")), "key"])
def site(request: pytest.FixtureRequest, start: Start) -> tuple[BrokerProcess, int, str]:
    """A broker with lines and a TCP endpoint; who comes there, as its user and its key."""
    if request.param == "uid":
        return start("broker.unix=/DIRECTORY/run/lines.sock", more_endpoints=[free_tcp()]), OTHER_UID, ""
    broker = start("broker.unix=/DIRECTORY/run/lines.sock", more_endpoints=[free_tcp()], keys=["eve"])
    return broker, 0, key_of(broker, "eve")


def test_who_takes_the_name_of_anothers_connection_has_none_of_its_rights(site: tuple[BrokerProcess, int, str]) -> None:
    broker, uid, key = site
    with LineWire(broker.listening["unix"]) as owner, broker.wire() as second:
        assert owner.run("x = 1", session="mine").status == ["done"]
        assert second.ask("ping").status == ["done", "pong"]
        request = {"id": "a", "op": "transfer", "session": "mine", "who": "eve"}
        stranger = Stranger(broker.listening["tcp"], [(name, request) for name in names()], uid, key)
        assert [answer["status"][-1] for answer in stranger.answers] == ["unauthorized"] * len(names())
        assert "routing id" in stranger.answers[0]["err"]
        assert owner.ask("info", session="mine")["info"]["owner"] == f"uid:{os.getuid()}"
        assert stranger.let_go() == []


def test_a_name_that_was_taken_beforehand_brings_neither_rights_nor_answers(
    site: tuple[BrokerProcess, int, str],
) -> None:
    broker, uid, key = site
    ping = {"id": "a", "op": "ping"}
    stranger = Stranger(broker.listening["tcp"], [(name, ping) for name in names()], uid, key)
    wires: list[Wire] = [LineWire(broker.listening["unix"]) for _ in range(4)] + [broker.wire() for _ in range(4)]
    for number, owner in enumerate(wires):
        assert owner.ask("describe")["identity"] == f"uid:{os.getuid()}"
        assert owner.run("6*7", session=f"s{number}").value == "42"
        owner.close()
    assert stranger.let_go() == []


def test_a_connections_identity_does_not_outlive_it(site: tuple[BrokerProcess, int, str]) -> None:
    broker, uid, key = site
    owner = zmq.Context()
    first = owner.socket(zmq.DEALER)
    first.linger = 0
    first.routing_id = b"client-a"
    first.connect(broker.endpoint)
    try:
        first.send_json({"id": "a", "op": "eval", "code": "import time; time.sleep(1); 'late'"})
        assert first.poll(5000)
        answer = json.loads(first.recv())
        assert (answer["status"], "routing id" in answer["err"]) == (["done", "error", "unauthorized"], True)
    finally:
        owner.destroy(linger=0)
    stranger = Stranger(broker.listening["tcp"], [(b"client-a", {"id": "b", "op": "describe"})], uid, key)
    assert [answer["status"][-1] for answer in stranger.answers] == ["unauthorized"]
    assert stranger.let_go() == []


def test_an_ordinary_client_is_who_it_is(site: tuple[BrokerProcess, int, str]) -> None:
    """The control of the three above: the same clients, without a name that they chose."""
    broker, uid, key = site
    stranger = Stranger(broker.listening["tcp"], [(b"", {"id": "a", "op": "describe"})], uid, key)
    assert stranger.answers[0]["identity"] == (f"uid:{uid}" if uid else "eve")
    stranger.let_go()


def test_connections_are_counted_on_every_transport_and_forgotten_as_they_end(start: Start) -> None:
    broker = start("broker.tcp=127.0.0.1:0", "broker.unix=/DIRECTORY/run/lines.sock", more_endpoints=[free_tcp()])
    zmq_tcp = broker.ready["listening"][1]

    def count(wire: Wire) -> int:
        return int(wire.ask("stats")["stats"]["connections"])

    with broker.wire() as wire:
        assert count(wire) == 1
        others = [LineWire(url) for url in broker.ready["listening"] if url.startswith("lines")]
        with Client(zmq_tcp, start=False) as client:
            assert client.describe().identity == f"uid:{os.getuid()}"
            wait_until(lambda: count(wire) == 4, "all of them are counted")
        for other in others:
            other.close()
        wait_until(lambda: count(wire) == 1, "those that have ended are not")

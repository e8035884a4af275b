"""Floods of one client: others are answered meanwhile, their sessions live on, and the audit does not drown."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from kit import BrokerProcess, LineWire, wait_until
from replwire.limits import MAX_DELAYED_REFUSALS

Start = Callable[..., BrokerProcess]
WORST_S = 0.1  # of a ping beside a flood; with room for a busy machine
ROOM = 5


@pytest.fixture(scope="module")
def flooded() -> Iterator[BrokerProcess]:
    """One broker for all floods, with the limits that every broker has."""
    import shutil
    import tempfile
    from pathlib import Path

    broker = BrokerProcess(
        Path(tempfile.mkdtemp(prefix="rpl-", dir="/tmp")),
        "broker.tcp=127.0.0.1:0",
        "broker.unix=/DIRECTORY/run/lines.sock",
        "limits.worker-silence-ms=1500",
    )
    yield broker
    assert broker.stop() == 0
    assert "internal error" not in broker.log_text()
    shutil.rmtree(broker.directory)


@contextmanager
def flood(url: str, data: bytes, *, reconnect: bool = True) -> Iterator[None]:
    """Send this over and over, and read no answer; connect anew as often as the broker hangs up."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            with LineWire(url) as wire:
                wire.socket.settimeout(0.05)
                try:
                    while not over.is_set():
                        try:
                            wire.socket.sendall(data)
                        except TimeoutError:
                            continue
                except OSError:
                    if not reconnect:
                        return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


FLOODS = {
    "no requests": b"x\n" * 32_768,
    "objects": b"{}\n" * 21_845,
    "blank lines": b"\n" * 65_536,
    "pings": b'{"id":"a","op":"ping"}\n' * 2_849,
    "half a line": b"x" * 65_536,
}


@pytest.mark.parametrize(
    ("transport", "kind"), [*(("unix", kind) for kind in FLOODS), ("tcp", "objects"), ("tcp", "pings")]
)
def test_a_flood_of_lines_stalls_nobody_and_costs_no_session(flooded: BrokerProcess, transport: str, kind: str) -> None:
    audit = flooded.directory / "audit.ndjson"
    with flooded.wire() as wire, LineWire(flooded.listening["unix"]) as line:
        wire.run("x = 41", session="calm")
        before = audit.stat().st_size if audit.exists() else 0
        took = []
        with flood(flooded.listening[transport], FLOODS[kind]):
            end = time.monotonic() + 2  # more than a worker may be silent here
            while time.monotonic() < end:
                for each in (wire, line):
                    begun = time.monotonic()
                    assert each.ask("ping").status == ["done", "pong"]
                    took.append(time.monotonic() - begun)
                time.sleep(0.02)
        assert max(took) < WORST_S * ROOM
        answer = wire.run("x + 1", session="calm")
        assert (answer.value, answer["state"]) == ("42", "kept")
        assert audit.stat().st_size - before < 300_000  # what the rate limit lets pass is told one by one


def test_a_flood_of_refusals_is_a_few_lines_of_the_audit_that_say_how_many(flooded: BrokerProcess) -> None:
    with LineWire(flooded.listening["tcp"]) as line:
        for number in range(300):
            line.send("dance", id=f"flood{number}")
            line.receive()

    def refused_count() -> int:
        rows = [json.loads(row) for row in (flooded.directory / "audit.ndjson").read_bytes().splitlines()]
        mine = [row for row in rows if str(row["id"]).startswith("flood")]
        assert len(mine) < 200
        return sum(row.get("repeated", 1) for row in mine)

    wait_until(lambda: refused_count() == 300, "all of them are accounted for")


def test_nothing_is_heard_after_a_hang_up_and_what_runs_is_answered(flooded: BrokerProcess) -> None:
    with LineWire(flooded.listening["unix"]) as line, flooded.wire() as wire:
        running = line.send("eval", code="input()", session="inflight", if_missing="create")
        line.until(running, "need-input")
        late = b'{"id":"late","op":"new-session","name":"late"}\n'
        line.raw(b"x\n" * 10 + late * 20)
        for _ in range(10):
            assert line.receive()["status"] == ["done", "error", "malformed-request"]
        assert wire.ask("stdin", session="inflight", input="here\n").status == ["done"]
        assert line.answer(running).value == "'here'"
        assert line.has_ended()
        assert "late" not in [each["name"] for each in wire.ask("ls-sessions")["sessions"]]


def test_who_asks_too_often_is_heard_more_slowly_and_loses_nothing(start: Start) -> None:
    broker = start("limits.rate-limit-per-min=5", "broker.unix=/DIRECTORY/run/lines.sock")
    with LineWire(broker.listening["unix"]) as line:
        sent = [line.send("ping") for _ in range(12)]
        begun = time.monotonic()
        words = [line.answer(each).status[-1] for each in sent]
        assert words == ["pong"] * 5 + ["rate-limited"] * 7
        assert time.monotonic() - begun > 0.5
        line.socket.shutdown(socket.SHUT_WR)
        assert line.has_ended()


def test_long_requests_are_read_later_over_lines_and_refused_with_a_word_over_zeromq(start: Start) -> None:
    broker = start("limits.max-request-bytes-per-s=200000", "broker.unix=/DIRECTORY/run/lines.sock")
    long = "#" + "x" * 150_000
    with LineWire(broker.listening["unix"]) as line, broker.wire() as wire:
        begun = time.monotonic()
        sent = [line.send("eval", code=long, session="s", if_missing="create") for _ in range(4)]
        assert [line.answer(each).status for each in sent] == [["done"]] * 4
        assert time.monotonic() - begun > 1
        answers = [wire.run(long, session="t") for _ in range(4)]
        refused = [each for each in answers if each.status[-1] == "rate-limited"]
        assert refused
        assert {each["limit"] for each in refused} == {"max-request-bytes-per-s"}
        assert wire.run("6*7", session="t").value == "42"  # what is short is never in its way
        time.sleep(max(each["retry-after-ms"] for each in refused) / 1000)
        assert wire.run(long, session="t").status == ["done"]


def test_a_client_over_zeromq_that_does_not_wait_when_told_is_slowed_down(start: Start) -> None:
    broker = start("limits.rate-limit-per-min=5")
    with broker.wire() as wire:
        assert [wire.ask("ping").status[-1] for _ in range(5)] == ["pong"] * 5
        begun = time.monotonic()
        assert [wire.ask("ping").status[-1] for _ in range(5)] == ["rate-limited"] * 5
        assert time.monotonic() - begun >= 0.5


def _flood_until_disconnected(endpoint: str, answers: list[dict[str, Any]]) -> None:
    """Thousands of pings at once; what is answered before the broker ends the connection."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as flood:
        flood.linger, flood.sndhwm, flood.reconnect_ivl = 0, 10_000, -1
        monitor = flood.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        flood.connect(endpoint)
        for _ in range(5_000):
            flood.send(b'{"id":"flood","op":"ping"}', zmq.NOBLOCK)
        end = time.monotonic() + 20
        while not monitor.poll(0) and time.monotonic() < end:
            if flood.poll(10):
                answers.append(json.loads(flood.recv()))
        flood.disable_monitor()
        monitor.close(0)


def test_a_flood_over_zeromq_is_disconnected_with_a_last_word_and_stalls_nobody(start: Start) -> None:
    broker = start("limits.rate-limit-per-min=500")
    with broker.wire() as calm:
        calm.run("x = 41", session="calm")
        answers: list[dict[str, Any]] = []
        flood = threading.Thread(target=_flood_until_disconnected, args=(broker.endpoint, answers))
        flood.start()
        took = []
        while flood.is_alive() and len(took) < 400:
            begun = time.monotonic()
            assert calm.ask("ping").status == ["done", "pong"]
            took.append(time.monotonic() - begun)
            flood.join(0.05)
        flood.join()
        assert max(took) < WORST_S * ROOM
        *served, last = answers
        assert [each["status"][-1] for each in served] == ["pong"] * 500
        assert last["status"] == ["done", "error", "rate-limited"]
        assert last["err"].endswith("too many refused requests are waiting: the connection is closed")
        assert calm.run("x + 1", session="calm").value == "42"
        # What was sent beyond that is not looked at.
        assert calm.ask("stats")["stats"]["counts"]["refused.rate-limited"] == MAX_DELAYED_REFUSALS + 1
    with broker.wire() as again:
        assert again.ask("ping").status == ["done", "pong"]

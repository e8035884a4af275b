"""Epochs through the death of real brokers: what a client was told is never told again of another worker."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit import BrokerProcess, Wire

NAMES = [f"s{number}" for number in range(10)]
ENDED = "the broker that had it ended unexpectedly"


def started(broker: BrokerProcess) -> None:
    """Kill it as a machine out of memory would, and start the next."""
    broker.kill()
    broker.start()


def record_epochs(
    wire: Wire, expected: dict[str, int], ran: dict[str, int], sent: dict[str, str], timeout_s: float
) -> bool:
    """Take in one message, if one comes: the highest epoch that was told of each name, and in which code ran."""
    if not wire.socket.poll(int(timeout_s * 1000)):
        return False
    message: dict[str, Any] = json.loads(wire.socket.recv())
    name, epoch = sent.get(message["id"], ""), message.get("epoch", 0)
    expected[name] = max(expected.get(name, 0), epoch)
    if message.get("status") == ["done"] and "eval-id" in message:
        ran[name] = max(ran.get(name, 0), epoch)
    return True


def test_no_epoch_that_was_told_is_told_again_however_a_broker_dies(start: Callable[..., BrokerProcess]) -> None:
    broker = start("limits.rate-limit-per-min=0", warm=4)
    results: dict[str, int] = {}
    ran: dict[str, int] = {}
    dice = random.Random(11)
    for _ in range(5):
        with broker.wire() as wire:
            sent = {}
            for name in dice.choices(NAMES, k=30):
                op = dice.choice(["reset", "close", "eval", "eval", "new-session"])
                fields = {"code": "x = 1", "if_missing": "create"} if op == "eval" else {}
                about = {"name": name, "if_exists": "reuse"} if op == "new-session" else {"session": name}
                sent[wire.send(op, **about, **fields)] = name
            for _ in range(dice.randrange(8, 40)):
                record_epochs(wire, results, ran, sent, 1.0)
            broker.process.send_signal(signal.SIGKILL)
            while record_epochs(wire, results, ran, sent, 0.2):
                pass
        started(broker)
        with broker.wire() as wire:
            for name in sorted(results.keys() & set(NAMES)):
                fresh = wire.run("1", name)
                # A session that had no worker when its broker died comes back, and has no state that could be lost.
                assert fresh["epoch"] >= results[name], name
                assert fresh["epoch"] > ran.get(name, 0), name
                results[name] = ran[name] = fresh["epoch"]
            assert max(results.values()) < 100, "they go up one by one"
    assert "internal error" not in broker.log_text()


def test_after_a_killed_broker_a_session_begins_as_lost_with_the_cause(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        assert wire.run("x = 1", "work")["epoch"] == 1
        assert wire.ask("new-session", name="opened")["epoch"] == 1
    started(broker)
    assert broker.ready["lost"] == ["work", "opened"]
    with broker.wire() as wire:
        conflict = wire.run("x", "work", expect_epoch=1)
        assert (conflict.status[-1], conflict["epoch"]) == ("epoch-conflict", 2)
        answer = wire.run("'x' in globals()", "work")
        assert (answer.value, answer["state"], answer["epoch"], answer["cause"]) == ("False", "lost", 2, ENDED)
        assert wire.run("1", "work")["state"] == "kept"
        opened = wire.ask("new-session", name="opened")
        assert (opened["state"], opened["epoch"], opened["cause"]) == ("lost", 2, ENDED)
        assert wire.run("1", "opened")["state"] == "kept"
        assert wire.run("1", "fresh")["epoch"] == 1


def test_after_a_clean_end_as_well(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("x = 1", "work")
        wire.run("x = 1", "closed")
        wire.ask("close", session="closed")
    assert broker.stop() == 0
    broker.start()
    assert broker.ready["lost"] == []
    with broker.wire() as wire:
        answer = wire.run("1", "work")
        assert (answer["state"], answer["epoch"]) == ("lost", 2)
        assert answer["cause"].startswith("the broker that had it ended: ")
        answer = wire.run("1", "closed")
        assert (answer["state"], answer["epoch"], answer.get("cause")) == ("kept", 2, None)


def test_a_damaged_list_starts_every_epoch_higher_and_says_so(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("x = 1", "work")
    broker.kill()
    (session_list,) = Path(broker.directory).glob("sessions-*.ndjson")
    session_list.write_text(session_list.read_text().replace('"work"', '"wirk"'))
    broker.start()
    with broker.wire() as wire:
        first = wire.run("1", "work")["epoch"]
        assert 2**24 < first < 2**31
        assert wire.ask("reset", session="work")["epoch"] == first + 1
    assert "the journal is damaged" in broker.log_text()
    assert session_list.stat().st_mode & 0o777 == 0o600

"""Bad input gets one clear answer and loses nothing, whatever the operation: the table of them is read, not copied.

`REPLCTL_SOAK=1` runs many more examples with fresh randomness.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hostile import (
    ENDING,
    RAW_VALUES,
    as_line,
    check_end,
    due,
    one_bad_field,
    requests,
)
from kit import BrokerProcess, LineWire, wait_until
from replwire.faults import RequestError
from replwire.requests import OPS, parse, to_request
from transports import BrokerSites

SOAK = os.environ.get("REPLCTL_SOAK") == "1"
SHARED_OPS = [op for op in OPS if op != ENDING]
CONNECTIONS = 10  # for many lines: refusals come slowly on each
MAX_PROTOCOL_ERRORS = 8  # bad lines in a row that a client may send and still be heard, whatever is bad about them
QUIET = (
    "limits.rate-limit-per-min=0",
    "limits.max-wait-ms=100",
    "limits.max-queue-wait-ms=2000",
    "limits.max-eval-time-ms=2000",
    "limits.max-sessions=6",
)
FUZZ = settings(
    max_examples=3000 if SOAK else 100,
    database=None,
    suppress_health_check=list(HealthCheck),
)
GOOD_EVAL = [(b"op", b'"eval"'), (b"session", b'"s"'), (b"code", b'"1"')]
GROWTH_KIB = 1024  # over 20 000 refusals: 50 bytes kept of each would break it


@pytest.fixture(scope="module")
def target() -> Iterator[BrokerProcess]:
    """One broker for all the abuse. A session of somebody else lives in it, and must not notice."""
    broker = BrokerSites.start(*QUIET)
    with LineWire(broker.listening["tcp"]) as wire:
        wire.run("x = 'kept'", session="witness")
    kept = broker.directory / "transcripts"  # opened behind the answers; what is counted later must not begin before
    wait_until(lambda: len(list(kept.glob("*.jsonl"))) == 2, "the transcripts of broker and witness are open")
    yield broker
    BrokerSites.remove(broker)


@pytest.fixture
def wire(target: BrokerProcess) -> Iterator[LineWire]:
    """A connection to it. Afterwards evals work, and the sessions are what they were."""
    with LineWire(target.listening["tcp"]) as wire:
        yield wire
    assert target.process.poll() is None, target.log_text()
    with LineWire(target.listening["tcp"]) as after:
        for entry in after.ask("ls-sessions")["sessions"]:
            if entry["name"] != "witness":
                after.ask("close", session=entry["session"])
        assert after.run("1+1", session=None).value == "2"
        answer = after.run("x", session="witness")
        assert (answer.value, answer["epoch"], answer["state"]) == ("'kept'", 1, "kept")
        wait_until(lambda: after.ask("stats")["stats"]["routes"] == 0, "nothing waits any more")
        assert [entry["name"] for entry in after.ask("ls-sessions")["sessions"]] == ["witness"]


class FuzzSender:
    """Sends lines in any pieces, and sees that each is answered once, under its id."""

    def __init__(self, wire: LineWire) -> None:
        self._wire = wire
        self.line_count = 0
        self._subscribed: set[str] = set()

    def send(self, lines: list[bytes], cuts: random.Random | None = None) -> list[dict[str, Any]]:
        """Send lines and return the last messages for all of them, in the order in which they came."""
        self.start(lines, cuts)
        return self.finish()

    def start(self, lines: list[bytes], cuts: random.Random | None = None) -> None:
        """Send lines, with good ones in between, which keep the connection."""
        padded: list[bytes] = []
        for line in lines:
            self.line_count += 1
            padded.append(line)
            if self.line_count % MAX_PROTOCOL_ERRORS == 0:
                padded.append(b'{"id":"between","op":"ping"}')
        self._wanted = wanted = Counter(request_id for line in padded if (request_id := due(line)) is not None)
        for request_id, count in wanted.items():
            for _ in range(count):
                self._wire.rules.sent(request_id)
        self._write(b"".join(line + b"\n" for line in padded), cuts)

    def finish(self) -> list[dict[str, Any]]:
        """Return the last messages for what `start` sent."""
        wanted, ends = self._wanted, []
        while wanted.total():
            message = self._wire.receive()
            if not self._answers(message):
                continue
            assert wanted[message["id"]] > 0, message
            wanted[message["id"]] -= 1
            check_end(message)
            ends.append(message)
        return ends

    def _answers(self, message: dict[str, Any]) -> bool:
        """Return whether a message answers its request. `subscribe` is answered at its start, and again at its end."""
        status = message.get("status", [])
        if "subscribed" in status:
            self._subscribed.add(message["id"])
            return True
        return "done" in status and message["id"] not in self._subscribed

    def _write(self, data: bytes, cuts: random.Random | None) -> None:
        while data:
            size = len(data) if cuts is None else min(len(data), cuts.choice((1, 7, 100, 70_000)))
            self._wire.raw(data[:size])
            data = data[size:]


@pytest.mark.parametrize("op", SHARED_OPS)
def test_every_bad_value_in_every_field_is_answered_once(wire: LineWire, op: str) -> None:
    wire.run("1")
    ends: list[dict[str, Any]] = []
    lines = list(one_bad_field(op))
    connections = 1 if op == "subscribe" else CONNECTIONS  # subscribers are to read all the time
    with ExitStack() as stack:
        wires = [stack.enter_context(LineWire(wire.url)) for _ in range(connections)]
        senders = [FuzzSender(each) for each in wires]
        for at in range(0, len(lines), MAX_PROTOCOL_ERRORS * connections):
            for number, sender in enumerate(senders):
                sender.start(lines[at + number * MAX_PROTOCOL_ERRORS : at + (number + 1) * MAX_PROTOCOL_ERRORS])
            ends += [end for sender in senders for end in sender.finish()]
    assert len([end for end in ends if "error" in end["status"]]) > 200


@pytest.mark.parametrize("field", ["cwd", "env", "runtime"])
def test_a_throw_away_session_with_bad_surroundings_is_answered_once(wire: LineWire, field: str) -> None:
    """Such requests reach the worker and its interpreter."""
    sender = FuzzSender(wire)
    for number, value in enumerate(RAW_VALUES):
        pairs = [(b"op", b'"eval"'), (b"code", b'"1"'), (field.encode(), value)]
        sender.send([as_line(b"t%d" % number, pairs)])


@FUZZ
@given(data=st.data())
def _any_lines_in_any_pieces(sender: FuzzSender, data: st.DataObject) -> None:
    request = st.sampled_from(SHARED_OPS).flatmap(requests)
    noise = st.binary(max_size=100).map(lambda raw: raw.replace(b"\n", b""))
    drawn = data.draw(st.lists(request | noise, min_size=1, max_size=8))
    first = sender.line_count  # a subscription of an earlier example may end during this one: no id comes twice
    lines = [each if isinstance(each, bytes) else as_line(b"f%d" % n, each) for n, each in enumerate(drawn, first)]
    sender.send([*lines, b'{"id":"last","op":"ping"}'], random.Random(data.draw(st.integers(0, 99))))


def test_any_lines_at_once_in_any_pieces_are_answered_once_each(wire: LineWire) -> None:
    """Requests of all operations with any fields, and noise, interleaved on one connection."""
    wire.run("1")
    _any_lines_in_any_pieces(FuzzSender(wire))


@FUZZ
@given(raw=st.binary(max_size=400))
def _any_bytes(wire: LineWire, raw: bytes) -> None:
    lines = raw.split(b"\n")
    FuzzSender(wire).send([*lines, b'{"id":"last","op":"ping"}'])


def test_any_bytes_are_answered_line_by_line(wire: LineWire) -> None:
    _any_bytes(wire)


def test_arrays_of_any_depth_break_neither_broker_nor_worker(wire: LineWire) -> None:
    """At some depth both give up. The broker must be first, for the worker has a session to lose."""
    wire.run("1")
    words = set()
    for depth in (*range(900, 1000), 5_000, 200_000):
        array = b"[" * depth + b"]" * depth
        wire.raw(as_line(b"deep%d" % depth, [*GOOD_EVAL, (b"z", array)]) + b"\n")
        while "done" not in (message := wire.receive()).get("status", []):
            continue
        check_end(message)
        words.add(message["status"][-1])
        assert wire.ask("ping").status == ["done", "pong"]
    assert words == {"done", "malformed-request"}
    assert wire.run("1")["state"] == "kept"


def test_half_lines_of_clients_that_vanish_leave_no_trace(wire: LineWire, target: BrokerProcess) -> None:
    epoch = wire.run("1")["epoch"]
    line = as_line(b"half", [(b"op", b'"close"'), (b"session", b'"no-such"')])
    wait_until(lambda: _pool_is_full(wire) and len(_open_transcripts(target)) == 3, "all is open that will be")
    before = _descriptors(target)
    address = target.listening["tcp"].rpartition("/")[2].split(":")
    for number in range(300 if SOAK else 60):
        with socket.create_connection((address[0], int(address[1]))) as half:
            half.sendall((line + b"\n") * (number % 3) + line[: number % len(line)])
            if number % 2:  # a reset instead of an end
                half.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    wait_until(lambda: wire.ask("stats")["stats"]["connections"] == 1, "all of them have gone")
    # Fewer, where a worker of the test before was still dying when they were counted.
    wait_until(lambda: _descriptors(target) <= before, f"their descriptors are given back: {before} before")
    assert wire.run("1")["epoch"] == epoch


def test_a_shutdown_that_is_not_well_formed_shuts_nothing_down() -> None:
    broker = BrokerSites.start(*QUIET)
    with LineWire(broker.listening["tcp"]) as wire:
        sender = FuzzSender(wire)
        for line in one_bad_field(ENDING):
            if _is_refused(line):
                assert "error" in sender.send([line])[0]["status"]
        assert wire.run("1+1").value == "2"
        assert wire.ask(ENDING).status == ["done", "shutdown-started"]
        assert broker.process.wait(20) == 0
    BrokerSites.remove(broker)


def _is_refused(line: bytes) -> bool:
    try:
        to_request(parse(line))
    except RequestError:
        return True
    return False


def _descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def _open_transcripts(broker: BrokerProcess) -> list[str]:
    """Of broker, witness and one session; they are opened and closed behind the answers."""
    directory = f"/proc/{broker.pid}/fd"
    links = []
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(f"{directory}/{name}"))
    return [link for link in links if link.endswith(".jsonl")]


def _pool_is_full(wire: LineWire) -> bool:
    workers = wire.ask("stats")["stats"]["workers"]
    return bool(workers["starting"] == 0 and workers["warm"] == 2)


def _rss_kib(broker: BrokerProcess) -> int:
    return int(Path(f"/proc/{broker.pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def test_thousands_of_refusals_leave_nothing_in_the_broker() -> None:
    broker = BrokerSites.start(*QUIET)
    lines = [line for op in OPS for line in one_bad_field(op) if len(line) < 2_000 and _is_refused(line)]
    random.Random(1).shuffle(lines)
    rounds = (200_000 if SOAK else 20_000) // len(lines) + 1
    with LineWire(broker.listening["tcp"]) as wire:
        wire.run("x = 'kept'")
        sender = FuzzSender(wire)

        def abuse(batch: list[bytes]) -> None:
            for start in range(0, len(batch), 200):
                assert all(
                    "error" in end["status"] or end["id"] == "between"
                    for end in sender.send(batch[start : start + 200])
                )

        def counts() -> tuple[int, ...]:
            stats = wire.ask("stats")["stats"]
            return (stats["sessions"], stats["connections"], stats["routes"], _descriptors(broker))

        abuse(lines)  # what is kept once, a counter for each word, is there after this
        wait_until(lambda: _pool_is_full(wire), "the pool is full")
        before, memory = counts(), _rss_kib(broker)
        for _ in range(rounds):
            abuse(lines)
        assert counts() == before
        grown = _rss_kib(broker) - memory
        assert grown < GROWTH_KIB
        answer = wire.run("x")
        assert (answer.value, answer["epoch"]) == ("'kept'", 1)
    BrokerSites.remove(broker)

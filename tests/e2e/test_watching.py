"""Events over a real broker: on every transport, to slow readers, on the PUB socket; figures and snapshots."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from prometheus_client.parser import text_string_to_metric_families

from kit import TIMEOUT_S, BrokerProcess, LineWire, Wire, wait_until
from replwire import events
from replwire.events import BrokerShutdown, EvalFinished


def _events(wire: Wire, request_id: str, until: str) -> list[dict[str, Any]]:
    """Events of a subscription, up to the first of this type. Each must be one that is declared."""
    found: list[dict[str, Any]] = []
    for message in wire.messages(request_id):
        if "event" in message:
            found.append(message["event"])
            events.decode(json.dumps(message["event"]).encode())
            if found[-1]["type"] == until:
                return found
    raise AssertionError(f"no {until} came: {found}")


@pytest.fixture(params=["zmq", "tcp", "unix"])
def watcher(lines_broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Wire]:
    url = lines_broker.listening.get(request.param)
    with lines_broker.wire() if url is None else LineWire(url) as wire:
        yield wire


def test_events_come_on_every_transport_while_another_client_works(lines_broker: BrokerProcess, watcher: Wire) -> None:
    with lines_broker.wire() as worker:
        worker.ask("new-session", name="seen")
        sent = watcher.send("subscribe", session="seen", types=["eval/"], output=True)
        assert watcher.until(sent, "subscribed")["name"] == "seen"
        worker.run("print('hi')\n6*7", "seen")
        found = _events(watcher, sent, "eval/finished")
        kinds = [each["type"] for each in found]
        assert kinds == ["eval/accepted", "eval/started", "eval/output", "eval/output-end", "eval/finished"]
        assert found[2]["reply"]["out"] == "hi\n"
        assert (found[-1]["value"], found[-1]["out"], found[-1]["status"]) == ("42", "hi\n", "ok")
        worker.ask("close", session="seen")
        assert watcher.answer(sent).status == ["done", "session-closed"]


def test_who_comes_back_catches_up_by_number(lines_broker: BrokerProcess) -> None:
    with lines_broker.wire() as wire:
        wire.run("1", "again")
        with lines_broker.wire() as first:
            seq = first.until(first.send("subscribe", session="again"), "subscribed")["seq"]
        wire.run("2", "again")
        sent = wire.send("subscribe", session="again", since_seq=seq, types=["eval/finished"])
        answer = wire.until(sent, "subscribed")
        assert [each["value"] for each in answer["events"]] == ["2"]
        assert answer["missed"] == 0
        wire.ask("close", session="again")


class SlowWire(Wire):
    """Takes in as little as libzmq allows while nobody reads."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.socket.close()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.rcvhwm = 1
        self.socket.connect(endpoint)


@pytest.mark.parametrize("transport", ["zmq", "tcp"])
def test_a_reader_that_is_too_slow_is_told_how_much_it_missed(
    start: Callable[..., BrokerProcess], transport: str
) -> None:
    most = 200_000_000
    broker = start(f"limits.max-output-bytes={most}", "limits.rate-limit-per-min=0", "broker.tcp=127.0.0.1:0")
    with broker.wire() as worker:
        worker.ask("new-session", name="s")
        with SlowWire(broker.endpoint) if transport == "zmq" else LineWire(broker.listening["tcp"]) as slow:
            sent = slow.send("subscribe", output=True)
            slow.until(sent, "subscribed")
            if transport == "zmq":  # many, beyond what libzmq and the kernel hold
                for number in range(1000):
                    assert worker.run(f"{number}", "s").value == str(number)
            else:  # much, beyond what the kernel holds
                worker.run("import sys\nfor i in range(1500): sys.stdout.write('x' * 65_536)", "s")
            lagged = next(m["event"] for m in slow.messages(sent) if m["event"]["type"] == "bus/lagged")
            assert lagged["missed"] > 0
        assert worker.run("'fine'", "s").value == "'fine'"


@pytest.mark.parametrize("transport", ["zmq", "tcp"])
def test_a_subscriber_that_goes_without_a_word_is_forgotten(lines_broker: BrokerProcess, transport: str) -> None:
    with lines_broker.wire() as wire:
        leaving = lines_broker.wire() if transport == "zmq" else LineWire(lines_broker.listening["tcp"])
        leaving.until(leaving.send("subscribe", output=True), "subscribed")
        assert wire.ask("introspect", name="subscriptions")["snapshots"]["subscriptions"]["total"] == 1
        leaving.close()

        def forgotten() -> bool:
            wire.run("print(1)", "s")
            return wire.ask("introspect", name="subscriptions")["snapshots"]["subscriptions"]["total"] == 0

        wait_until(forgotten, "the subscription is gone")


def test_the_pub_socket_has_every_event_by_type(start: Callable[..., BrokerProcess]) -> None:
    broker = start("broker.publish=ipc:///DIRECTORY/run/events.sock", "transcript.backend=off")
    context = zmq.Context()
    reader: Any = context.socket(zmq.SUB)
    reader.connect(f"ipc://{broker.directory}/run/events.sock")
    reader.subscribe(b"eval/output")
    reader.subscribe(b"eval/finished")
    found: dict[bytes, dict[str, Any]] = {}
    with broker.wire() as wire:

        def has_all_types() -> bool:
            wire.run("print('hi')", "s")  # until the subscription has arrived
            while reader.poll(50):
                topic, body = reader.recv_multipart()
                found[topic] = json.loads(body)
            return {b"eval/output", b"eval/finished"} <= found.keys()

        wait_until(has_all_types, "published events")
    context.destroy(linger=0)
    assert found[b"eval/output"]["reply"]["out"] == "hi\n"
    assert set(found) == {b"eval/output", b"eval/output-end", b"eval/finished"}
    directory = broker.directory
    assert broker.stop() == 0
    assert not (directory / "run/events.sock").exists()


def _refusal(directory: Path, setting: str) -> str:
    """Return the message of a broker that refuses to start with this setting."""
    command = [sys.executable, "-m", "replctl", "serve", "--endpoint", f"ipc://{directory}/b.sock", "--set", setting]
    env = {**os.environ, "REPLCTL_STATE_DIR": str(directory), "XDG_CONFIG_HOME": str(directory)}
    directory.chmod(0o700)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    return done.stderr


def test_a_reader_that_goes_is_forgotten_though_nothing_happens(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.ask("new-session", name="idle")

        def readers() -> int:
            return int(wire.ask("introspect", name="subscriptions")["snapshots"]["subscriptions"]["total"])

        for _ in range(3):
            leaving = broker.wire()
            leaving.until(leaving.send("subscribe", session="idle"), "subscribed")
            staying = broker.wire()
            staying.until(staying.send("subscribe", session="idle"), "subscribed")
            leaving.close()
            wait_until(lambda: readers() == 1, "the one that stays")
            staying.close()
            wait_until(lambda: readers() == 0, "nobody listens")


def test_a_pub_socket_takes_nobodys_place(start: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = start("broker.publish=ipc:///DIRECTORY/run/events.sock")
    taken = broker.directory / "run/events.sock"
    assert "another process listens there" in _refusal(tmp_path, f"broker.publish=ipc://{taken}")
    assert taken.is_socket()
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert "not a socket" in _refusal(tmp_path, f"broker.publish=ipc://{notes}")
    assert notes.read_text() == "mine"


@pytest.mark.parametrize("setting", ["broker.publish=tcp://0.0.0.0:0", "metrics.listen=0.0.0.0:0"])
def test_what_tells_everything_listens_on_loopback_alone(tmp_path: Path, setting: str) -> None:
    assert "loopback" in _refusal(tmp_path, setting)


def _get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[bytes, str]:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as sock:
        sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        whole = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = whole.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body.decode()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_metrics_are_served_and_can_be_parsed(start: Callable[..., BrokerProcess]) -> None:
    port = _free_port()
    broker = start(f"metrics.listen=127.0.0.1:{port}", "limits.worker-silence-ms=1000")
    with broker.wire() as wire:
        wire.run("sum(i * i for i in range(3_000_000))", "s", agent="ada")
        wire.run("1/0", "s")
        wire.ask("eval", session="s")  # no code

        def samples() -> dict[tuple[str, tuple[str, ...]], float]:
            families = text_string_to_metric_families(_get(port)[1])
            return {
                (each.name, tuple(each.labels.values())): each.value for family in families for each in family.samples
            }

        seen = wait_until(lambda: (now := samples()).get(("replctl_agent_cpu_seconds_total", ("ada",))) and now, "cpu")
        assert seen["replctl_evals_total", ("ok",)] == 1
        assert seen["replctl_evals_total", ("error",)] == 1
        assert seen["replctl_refusals_total", ("missing-code",)] == 1
        assert seen["replctl_eval_duration_seconds_count", ()] == 2
        assert seen["replctl_eval_duration_seconds_bucket", ("+Inf",)] == 2
        assert seen["replctl_sessions", ()] == 1
        assert seen["replctl_workers", ("assigned",)] == 1
        assert seen["replctl_agent_memory_bytes", ("ada",)] > 1_000_000
        _well_formed(_get(port)[1])
        assert _get(port, "/")[0] == b"HTTP/1.1 404 Not Found"
        assert _get(port, method="POST")[0] == b"HTTP/1.1 405 Method Not Allowed"
        assert _get(port, method="HEAD")[1] == ""


def _well_formed(page: str) -> None:
    """Check the metrics as `promtool check metrics` does."""
    seen = set()
    for family in text_string_to_metric_families(page):
        assert family.documentation, family
        assert family.type != "unknown", family
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in seen, "told twice"
            seen.add(key)
        if family.type == "histogram":
            values = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
            assert values == sorted(values)
            assert values[-1] == next(each.value for each in family.samples if each.name.endswith("_count"))


def test_who_connects_to_the_metrics_port_and_says_nothing_harms_nobody(start: Callable[..., BrokerProcess]) -> None:
    port = _free_port()
    broker = start(f"metrics.listen=127.0.0.1:{port}")
    idle = [socket.create_connection(("127.0.0.1", port), TIMEOUT_S) for _ in range(8)]
    try:
        assert idle[0].recv(1) == b""  # let go after its time
        wait_until(lambda: _try(port), "room again")
        with broker.wire() as wire:
            assert wire.run("1").value == "1"
    finally:
        for sock in idle:
            sock.close()


def _try(port: int) -> bool:
    try:
        return _get(port)[0] == b"HTTP/1.1 200 OK"
    except OSError:
        return False


def test_snapshots_of_a_live_broker(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("1", "s")
        found = wire.ask("introspect")["snapshots"]
        assert {
            "stats",
            "sessions",
            "workers",
            "eval-semaphore",
            "quotas",
            "subscriptions",
            "metrics",
            "limits",
            "transcripts",
        } == set(found)
        assert found["sessions"]["rows"][0]["name"] == "s"
        assert found["metrics"]["ended"] == {"ok": 1}


def test_a_broker_says_when_it_starts_and_ends(start: Callable[..., BrokerProcess]) -> None:
    broker = start("transcript.backend=jsonl")
    assert broker.stop() == 0
    lines = (broker.directory / "transcripts/broker.jsonl").read_bytes().splitlines()[1:]
    results = [events.decode(line) for line in lines]
    assert [event.seq for event in results] == list(range(1, len(results) + 1))
    assert isinstance(results[-1], BrokerShutdown)
    assert results[-1].reason == "SIGINT"


def test_every_event_in_a_real_transcript_is_declared(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("import os; print(1); os._exit(3)", "s")
        wire.run("x = 1; x", "s")
        wire.ask("reset", session="s")
        wire.ask("close", session="s")
    assert broker.stop() == 0
    path = next(each for each in (broker.directory / "transcripts").glob("*.jsonl") if each.name != "broker.jsonl")
    results = [events.decode(line) for line in path.read_bytes().splitlines()[1:]]
    assert [event.seq for event in results] == list(range(1, len(results) + 1))
    ends = [event for event in results if isinstance(event, EvalFinished)]
    assert [(each.status, each.out, each.value) for each in ends] == [("died", "1\n", None), ("ok", "", "1")]

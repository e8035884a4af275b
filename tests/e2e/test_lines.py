"""JSON lines over TCP and Unix sockets: the same sessions and limits as over ZeroMQ."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import TIMEOUT_S, BrokerProcess, LineWire, close_sessions, wait_until
from replbroker.endpoints import StartError
from replbroker.listeners import listen_tcp

Start = Callable[..., BrokerProcess]


@pytest.fixture(params=["tcp", "unix"])
def line(request: pytest.FixtureRequest, lines_broker: BrokerProcess) -> Iterator[LineWire]:
    """A line connection to the long-lived broker."""
    with LineWire(lines_broker.listening[request.param]) as wire:
        yield wire
        close_sessions(wire)


def test_sessions_are_shared_between_all_transports(line: LineWire, lines_broker: BrokerProcess) -> None:
    assert line.run("x = 41").status == ["done"]
    with lines_broker.wire() as zmq:
        assert zmq.run("x + 1").value == "42"
    for url in lines_broker.listening.values():
        with LineWire(url) as other:
            assert other.run("x").value == "41"


def test_answers_of_concurrent_requests_interleave_on_one_connection(line: LineWire) -> None:
    slow = line.send("eval", code="print('in', flush=True)\ninput()", session="slow", if_missing="create")
    line.until(slow, "need-input")
    assert line.run("1+1", session="quick").value == "2"
    assert line.ask("stdin", session="slow", input="ok\n")["delivered"] == ["slow"]
    assert line.answer(slow).value == "'ok'"


def test_an_interrupt_works_on_the_connection_that_runs_the_eval(line: LineWire) -> None:
    busy = line.send("eval", code="print('in', flush=True)\nwhile True: pass", session="s", if_missing="create")
    assert next(message for message in line.messages(busy) if message.get("out") == "in\n")
    assert line.ask("interrupt", session="s")["interrupted"] == ["s"]
    assert line.answer(busy).status == ["done", "interrupted"]


def test_malformed_lines_are_answered_and_the_connection_stays(line: LineWire) -> None:
    for bad in (b"{", b"[]", b"3", b'"x"', b"\xff\xfe"):
        line.raw(bad + b"\n")
        message = line.receive()
        assert (message["id"], message["status"]) == ("", ["done", "error", "malformed-request"])
    line.raw(b"\n   \n")
    assert line.ask("ping").status == ["done", "pong"]


def test_the_tenth_malformed_line_in_a_row_closes_and_a_good_one_starts_anew(
    line: LineWire,
) -> None:
    with LineWire(line.url) as other:
        other.raw(b"{\n" * 9)
        for _ in range(9):
            other.receive()
        assert other.ask("ping").status == ["done", "pong"]
        other.raw(b"{\n" * 10)
        for _ in range(10):
            assert other.receive()["status"] == ["done", "error", "malformed-request"]
        assert other.has_ended()
    assert line.ask("ping").status == ["done", "pong"]


def test_a_line_over_the_limit_is_answered_and_then_the_connection_closes(start: Start) -> None:
    broker = start("limits.max-message-bytes=2000", "broker.tcp=127.0.0.1:0")
    with LineWire(broker.listening["tcp"]) as wire:
        wire.raw(b"x" * 5000)
        message = wire.receive()
        assert (message["id"], message["status"]) == ("", ["done", "error", "message-too-large"])
        assert wire.has_ended()
    with LineWire(broker.listening["tcp"]) as wire:
        assert wire.ask("ping").status == ["done", "pong"]


def test_half_a_line_at_the_end_is_not_a_request(line: LineWire) -> None:
    with LineWire(line.url) as other:
        other.raw(b'{"id":"a","op":"shutdown"}')
        other.socket.shutdown(socket.SHUT_WR)
        assert other.has_ended()
    assert line.ask("ping").status == ["done", "pong"]


def test_a_connection_over_the_limit_is_told_before_it_is_closed(start: Start) -> None:
    broker = start("limits.max-connections=2", "broker.tcp=127.0.0.1:0")
    url = broker.listening["tcp"]
    with LineWire(url) as first, LineWire(url) as second:
        assert [wire.ask("ping").status for wire in (first, second)] == [["done", "pong"]] * 2
        with LineWire(url) as third:
            message = third.receive()
            assert message["status"] == ["done", "error", "connection-limit-reached"]
            assert (message["limit"], message["limit-value"]) == ("max-connections", 2)
            assert third.has_ended()

    def served() -> bool:
        with LineWire(url) as later:
            later.send("ping")
            return "pong" in later.receive()["status"]

    wait_until(served, "places come back")


def test_a_client_that_vanishes_leaves_an_eval_that_can_be_read(line: LineWire) -> None:
    with LineWire(line.url) as vanishing:
        request = vanishing.send("eval", code="x = input()\nx", session="s", if_missing="create")
        vanishing.until(request, "need-input")
    line.ask("stdin", session="s", input="b\n")
    assert line.ask("read", session="s", eval_id=1, wait_ms=20_000).value == "'b'"


def test_all_lines_of_a_client_that_has_gone_since_are_heard_as_its_own(start: Start) -> None:
    broker = start("broker.unix=/DIRECTORY/run/lines.sock")
    broker.process.send_signal(signal.SIGSTOP)
    with LineWire(broker.listening["unix"]) as vanishing:
        vanishing.send("ping")
        vanishing.send("eval", code="x = 42", session="s", if_missing="create")
    broker.process.send_signal(signal.SIGCONT)
    with broker.wire() as wire:
        wait_until(lambda: wire.ask("ls-sessions")["sessions"], "the session is there")
        assert wire.run("x").value == "42"


def test_a_client_that_never_reads_is_given_up_and_hurts_nobody(line: LineWire) -> None:
    with LineWire(line.url) as stuck:
        for number in range(30):
            stuck.send("eval", code="print('x' * 900_000)", session=f"stuck{number % 3}", if_missing="create")
        for number in range(20):
            assert line.run(f"{number} + 1", session="quick").value == str(number + 1)
        wait_until(lambda: line.ask("stats")["stats"]["slots"]["taken"] == 0, "its evals end")


def test_the_socket_file_is_private_and_goes_with_the_broker(start: Start) -> None:
    broker = start("broker.unix=/DIRECTORY/run/lines.sock")
    path = Path(broker.listening["unix"].removeprefix("lines+unix://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    broker.stop()
    assert not path.exists()


def test_a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not(start: Start) -> None:
    broker = start("broker.unix=/DIRECTORY/run/lines.sock")
    path = broker.listening["unix"].removeprefix("lines+unix://")
    plain = broker.directory / "run" / "plain"
    plain.write_text("precious")
    for taken, why in ((path, "another process listens there"), (str(plain), "not a socket")):
        done = subprocess.run(
            [sys.executable, "-m", "replctl", "serve", "--endpoint", broker.endpoint + "2", "--unix", taken],
            env=broker.environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 3
        assert why in done.stderr
    assert plain.read_text() == "precious"
    broker.kill()
    assert os.path.exists(path)
    broker.start()
    with LineWire(broker.listening["unix"]) as wire:
        assert wire.run("1+1").value == "2"


def test_every_listener_that_is_named_is_served(start: Start) -> None:
    broker = start('broker.tcp=["127.0.0.1:0", "127.0.0.1:0"]')
    paths = [str(broker.directory / "run" / name) for name in ("one.sock", "two.sock")]
    command = [sys.executable, "-m", "replctl", "serve", "--json", "--endpoint", broker.endpoint + "2"]
    command += ["--config", str(broker.directory / "config.toml"), "--tcp", "127.0.0.1:0", "--tcp", "127.0.0.1:0"]
    command += [word for path in paths for word in ("--unix", path)]
    with subprocess.Popen(command, env=broker.environ, stdout=subprocess.PIPE) as second:
        try:
            assert second.stdout is not None
            flags = json.loads(second.stdout.readline())["listening"][1:]
            for urls, kinds in ((broker.ready["listening"][1:], ["tcp"] * 2), (flags, ["tcp"] * 2 + ["unix"] * 2)):
                assert [url.partition("://")[0] for url in urls] == [f"lines+{kind}" for kind in kinds]
                for url in urls:
                    with LineWire(url) as wire:
                        assert wire.ask("ping").status == ["done", "pong"]
        finally:
            second.terminate()


def test_the_id_of_a_line_that_is_too_long_is_found_where_it_comes_first(start: Start) -> None:
    broker = start("limits.max-message-bytes=2000", "broker.tcp=127.0.0.1:0")
    for line, found in ((b'{"id":"a","op":"eval","code":"%s"}\n', "a"), (b'{"op":"eval","code":"%s","id":"a"}\n', "")):
        with LineWire(broker.listening["tcp"]) as wire:
            wire.raw(line % (b"x" * 5000))
            assert (wire.receive()["id"], wire.has_ended()) == (found, True)


def test_a_listener_beyond_loopback_is_warned_of(start: Start) -> None:
    assert not [warning for warning in start("broker.tcp=127.0.0.1:0").ready["warnings"] if "non-loopback" in warning]
    from replbroker.listeners import listen_tcp

    listener = listen_tcp("0.0.0.0:0")
    assert listener.warning is not None
    assert "non-loopback" in listener.warning
    listener.remove()


def test_a_line_is_one_json_object_and_ends_in_one_newline(line: LineWire) -> None:
    line.raw(b'{"id":"a","op":"ping"}\n')
    text = line.line()
    assert text.endswith(b"}\n")
    assert json.loads(text) == {"id": "a", "status": ["done", "pong"]}


def test_an_address_that_is_taken_is_named() -> None:
    listener = listen_tcp("127.0.0.1:0")
    address = "{}:{}".format(*listener.socket.getsockname())
    with pytest.raises(StartError, match=f"cannot listen on tcp {address}: Address already in use"):
        listen_tcp(address)
    listener.remove()


def test_a_second_message_does_not_wait_for_the_first_ones_receipt() -> None:
    """Else each message after the first costs a client over TCP the 40 ms of a delayed acknowledgement."""
    from replbroker.listeners import listen_tcp

    listener = listen_tcp("127.0.0.1:0")
    listener.socket.listen()
    with socket.create_connection(listener.socket.getsockname()), listener.socket.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    listener.remove()


def test_a_client_that_says_no_more_still_gets_its_answers(lines_broker: BrokerProcess) -> None:
    for url in lines_broker.listening.values():
        line = LineWire(url)
        line.raw(
            b'{"id":"a","op":"eval","code":"import time; print(1, flush=True); time.sleep(0.3); 42"}\n{"id":"p","op":"ping"}\n{"half'
        )
        line.socket.shutdown(socket.SHUT_WR)
        results = [line.receive() for _ in range(4)]
        assert [message["id"] for message in results] == ["p", "a", "a", "a"]
        assert [message.get("value") for message in results] == [None, None, "42", None]
        assert line.has_ended()
        line.close()


def test_a_client_that_says_no_more_and_goes_is_let_go(lines_broker: BrokerProcess) -> None:
    with lines_broker.wire() as wire:
        before = wire.ask("stats")["stats"]["connections"]
        for url in lines_broker.listening.values():
            line = LineWire(url)
            line.raw(b'{"id":"a","op":"eval","code":"import time; time.sleep(0.5)"}\n')
            line.socket.shutdown(socket.SHUT_WR)
            line.close()
        wait_until(lambda: wire.ask("stats")["stats"]["connections"] == before, "the connections are gone")


def test_a_tcp_client_that_went_without_a_word_is_found_out_by_the_kernel() -> None:
    listener = listen_tcp("127.0.0.1:0")
    try:
        listener.socket.listen()
        with socket.create_connection(listener.socket.getsockname()), listener.socket.accept()[0] as connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
    finally:
        listener.remove()

"""Faults to survive: deaths of every process, clients that misbehave, garbage on every socket."""

from __future__ import annotations

import os
import random
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from kit import BrokerProcess, Wire, close_sessions, is_alive, wait_until
from live_processes import look_at_each, parent_of, read_each

Start = Callable[..., BrokerProcess]
SPAWN = "import subprocess, os\np = subprocess.Popen(['sleep', '987'], start_new_session=True)\n"


def _pids(wire: Wire, session: str = "s") -> tuple[int, int]:
    """The session's interpreter and worker."""
    interpreter = wire.ask("info", session=session)["info"]["pid"]
    worker = parent_of(interpreter)
    return interpreter, worker


@pytest.mark.parametrize("victim", [0, 1], ids=["interpreter", "worker"])
def test_a_kill_in_the_middle_of_an_eval_is_told_and_leaves_nothing_running(wire: Wire, victim: int) -> None:
    begun = wire.run(SPAWN + "p.pid")
    child = int(begun.value or 0)
    pids = _pids(wire)
    request = wire.send("eval", code="print('in', flush=True)\nwhile True: pass", session="s")
    next(wire.messages(request))
    os.kill(pids[victim], signal.SIGKILL)
    answer = wire.answer(request)
    assert answer.status == ["done", "error", "worker-lost"]
    assert "SIGKILL" in answer["cause"]
    assert (answer["state"], answer["epoch"]) == ("lost", begun["epoch"] + 1)
    for pid in (*pids, child):
        wait_until(lambda pid=pid: not is_alive(pid), f"{pid} is gone", 2.0)
    assert wire.run("1+1").value == "2"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os._exit(3)", "exited with code 3"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
)
def test_a_crash_names_its_cause(wire: Wire, code: str, cause: str) -> None:
    answer = wire.run(code, session="crash")
    assert answer.status == ["done", "error", "worker-lost"]
    assert cause in answer["cause"]


def test_a_loss_that_nobody_was_told_of_is_told_with_the_next_answer(wire: Wire) -> None:
    before = wire.run("x = 1")["epoch"]
    os.kill(_pids(wire)[0], signal.SIGKILL)
    wait_until(lambda: wire.ask("ls-sessions")["sessions"][0]["state"] == "vacant", "the loss is noticed")
    answer = wire.run("'x' in globals()")
    assert answer.value == "False"
    assert (answer["state"], answer["epoch"]) == ("lost", before + 1)
    assert "SIGKILL" in answer["cause"]
    assert wire.run("1")["state"] == "kept"


def test_a_killed_broker_takes_workers_and_all_they_started_along(start: Start) -> None:
    broker = start()
    with broker.wire() as wire:
        child = int(wire.run(SPAWN + "p.pid").value or 0)
        wire.send("eval", code="while True: pass", session="s")
        wait_until(lambda: wire.ask("ls-sessions")["sessions"][0]["state"] == "busy", "it runs")
        family = broker.process_tree() | {child}
    broker.kill()
    for pid in family:
        wait_until(lambda pid=pid: not is_alive(pid), f"{pid} is gone", 2.0)
    broker.start()
    assert broker.ready["lost"] == ["s"]
    with broker.wire() as wire:
        answer = wire.ask("eval", code="1", session="s")
        assert answer.status == ["done", "error", "session-not-found"]
        assert "ended unexpectedly" in answer["cause"]
        assert wire.run("1+1").value == "2"


def test_what_a_killed_broker_leaves_goes_with_the_next_start_and_a_living_ones_stays(start: Start) -> None:
    living, killed = start(), start()
    left = killed.private_dir
    killed.kill()
    assert left.exists()
    other = start()
    assert [path.exists() for path in (left, other.private_dir, living.private_dir)] == [False, True, True]
    killed.start()
    assert killed.private_dir == left  # workers that are left look for a broker there
    used = killed.private_dir
    killed.stop()
    assert not used.exists()
    with living.wire() as wire:
        assert [wire.run("6*7", session=None).value for _ in range(4)] == ["42"] * 4  # more than had been started


def test_a_client_that_vanishes_in_the_middle_leaves_an_eval_that_can_be_read(
    wire: Wire, broker: BrokerProcess
) -> None:
    with broker.wire() as vanishing:
        request = vanishing.send("eval", code="print('a')\nx = input()\nx", session="s", if_missing="create")
        vanishing.until(request, "need-input")
    wire.ask("stdin", session="s", input="b\n")
    answer = wire.ask("read", session="s", eval_id=1, wait_ms=20_000)
    assert (answer.out, answer.value) == ("a\n", "'b'")


def stuck_wire(broker: BrokerProcess) -> Wire:
    """A client that holds one answer that it has not read."""
    stuck = broker.wire()
    stuck.socket.close()
    stuck.socket = stuck.context.socket(zmq.DEALER)
    stuck.socket.rcvhwm = 1
    stuck.socket.linger = 0
    stuck.socket.connect(broker.endpoint)
    return stuck


def test_a_client_that_never_reads_hurts_nobody_else(wire: Wire, broker: BrokerProcess) -> None:
    stuck = stuck_wire(broker)
    for number in range(40):
        stuck.send("eval", code="print('x' * 900_000)", session=f"stuck{number % 4}", if_missing="create")
    for number in range(30):
        assert wire.run(f"{number} + 1", session="quick").value == str(number + 1)
    wait_until(lambda: wire.ask("stats")["stats"]["slots"]["taken"] == 0, "the stuck client's evals end")
    stuck.close()
    assert wire.run("1+1", session="quick").value == "2"


def test_a_client_that_was_cut_off_for_not_reading_connects_again_as_who_it_is(broker: BrokerProcess) -> None:
    with stuck_wire(broker) as stuck:
        asked = [stuck.send("describe") for _ in range(1500)]
        answers = []
        while stuck.socket.poll(500):
            answers.append(stuck.receive())
        assert len(answers) < len(asked), "it was not cut off"
        assert {tuple(answer["status"]) for answer in answers} == {("done",)}
        assert stuck.ask("ls-sessions").status == ["done"]


def test_random_bytes_and_half_messages_on_every_socket_change_nothing(wire: Wire, broker: BrokerProcess) -> None:
    wire.run("x = 1")
    noise = random.Random(7)
    for target in (broker.endpoint.removeprefix("ipc://"), f"{broker.private_dir}/workers"):
        for size in (1, 10, 64, 4096, 100_000):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(target)
                raw.settimeout(5)
                try:
                    raw.sendall(noise.randbytes(size))
                except (BrokenPipeError, ConnectionResetError):
                    continue
    assert wire.run("x").value == "1"
    assert broker.process.poll() is None


def test_frames_of_a_stranger_on_the_workers_socket_are_not_heard(wire: Wire, broker: BrokerProcess) -> None:
    wire.run("x = 1")
    stranger = Wire(f"ipc://{broker.private_dir}/workers")
    for body in (b"", b"\x02" + b"\0" * 17, b"\x01" + b"\0" * 17 + b'{"token":"guess"}', b"\x08\x01" + b"\0" * 40):
        stranger.socket.send(body)
    assert not stranger.socket.poll(100)
    stranger.close()
    assert wire.run("x").value == "1"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"id":1}', b'{"id":"a"}', b"[" * 100_000, b'{"id":"a","op":{}}']
)
def test_a_message_that_is_no_request_gets_a_typed_answer(wire: Wire, body: bytes) -> None:
    wire.socket.send(body)
    message = wire.receive()
    assert message["status"][:2] == ["done", "error"]
    assert message["status"][2] in ("malformed-request", "invalid-request")
    assert wire.run("1+1").value == "2"


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":3,"id":"a","op":"stdin","session":"s","input":"x"}',
        b'{"id":"a","op":"eval","session":"s","code":{},"code":"x"}',
        b'{"id":"a","op":"read","session":"s","eval-id":[],"eval-id":1}',
        b'{"op":[],"id":"a","op":"clear-bindings","session":"s"}',
    ],
)
def test_a_key_that_comes_twice_counts_as_its_last_value_and_costs_no_session(wire: Wire, body: bytes) -> None:
    before = wire.run("x = 1")["epoch"]
    wire._put(body)
    assert wire.answer("a").status == ["done"]
    assert wire.run("1")["epoch"] == before


def test_messages_of_many_parts_are_not_requests(wire: Wire) -> None:
    wire.socket.send_multipart([b"{}"] * 1000)
    assert wire.receive()["status"] == ["done", "error", "malformed-request"]
    assert wire.run("1+1").value == "2"


def test_an_interpreter_that_talks_out_of_turn_dies_with_its_session_alone(wire: Wire) -> None:
    wire.run("x = 1", session="other")
    answer = wire.run(
        "import os\nfor fd in range(3, 10):\n    try: os.write(fd, b'\\x7f' * 64)\n    except OSError: pass\nwhile True: pass"
    )
    assert answer.status == ["done", "error", "worker-lost"]
    assert "protocol" in answer["cause"]
    assert wire.run("x", session="other").value == "1"


def test_a_fork_in_the_users_code_never_answers_twice(wire: Wire) -> None:
    answer = wire.run(
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('once' if pid else 'child')\npid > 0"
    )
    assert answer.value == "True"
    assert sorted(answer.out.split()) == ["child", "once"]
    assert wire.run("1+1").value == "2"


def test_a_worker_that_never_becomes_ready_is_told_and_not_waited_for_forever(start: Start, tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    broker = start(f"python.interpreter={slow}", "limits.worker-start-ms=300")
    with broker.wire() as wire:
        answer = wire.run("1")
        assert answer.status == ["done", "error", "worker-lost"]
        assert "ready within 300 ms" in answer["cause"]
        assert wire.ask("ls-sessions")["sessions"] == []
        assert wire.ask("ping").status == ["done", "pong"]


def test_an_interpreter_that_cannot_start_says_why(start: Start) -> None:
    broker = start("python.interpreter=/bin/false")
    with broker.wire() as wire:
        answer = wire.run("1")
        assert answer.status == ["done", "error", "worker-lost"]
        assert "exited with code 1" in answer["cause"]
        assert wire.ask("ping").status == ["done", "pong"]


def test_a_broker_without_its_fork_server_gets_another(start: Start) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("x = 1")
        lines = read_each(broker.process_tree(), "cmdline")
        servers = [pid for pid, line in lines.items() if b"forkserver" in line]
        children = [pid for pid, parent in look_at_each(servers, parent_of).items() if parent == broker.pid]
        assert children
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        answer = wait_until(lambda: (a := wire.run("1+1")).value == "2" and a, "evals work again")
        assert answer.value == "2"


def test_sessions_outlive_their_fork_server_and_their_own_end_is_told_as_it_was(start: Start) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("x = 6")
        wire.run("x = 7", session="other")
        worker = _pids(wire)[1]
        server = parent_of(worker)
        assert b"forkserver" in Path(f"/proc/{server}/cmdline").read_bytes()
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not is_alive(server), "the fork server is gone")
        assert wire.run("1+1", session="new").value == "2"
        kept = wire.run("x")
        assert (kept.value, kept["state"], kept["epoch"]) == ("6", "kept", 1)
        os.kill(worker, signal.SIGKILL)
        lost = wait_until(lambda: (a := wire.run("1")).get("state") == "lost" and a, "the loss is told")
        assert lost["cause"] == "the worker process was killed by SIGKILL"
        assert wire.run("x", session="other").value == "7"
    family = broker.process_tree()
    assert broker.stop() == 0
    wait_until(lambda: not any(map(is_alive, family)), "nothing is left")


def test_an_interpreter_that_is_stopped_is_told_to_be_and_replaced(start: Start) -> None:
    broker = start()
    with broker.wire() as wire:
        wire.run("x = 1")
        os.kill(_pids(wire)[0], signal.SIGSTOP)
        answer = wire.run("x", timeout_ms=300)
        assert answer.status == ["done", "error", "worker-lost"]
        assert "stopped by a signal" in answer["cause"]
        assert wire.run("1+1").value == "2"


def test_a_full_disk_in_the_state_directory_costs_the_list_and_no_session(start: Start) -> None:
    broker = start(max_file_bytes=16)
    with broker.wire() as wire:
        assert wire.run("1+1").value == "2"
        assert wire.run("1+1", session="t").value == "2"
    assert (broker.directory / "log").stat().st_size <= 16
    assert broker.stop() == 0


def test_a_burst_of_new_sessions_is_bounded_and_heals(start: Start) -> None:
    broker = start("limits.max-sessions=10")
    with broker.wire() as wire:
        requests = [wire.send("new-session") for _ in range(200)]
        answers = [wire.answer(request) for request in requests]
        refused = [a for a in answers if "session-limit-reached" in a.status]
        assert len(refused) == 190
        assert refused[0]["limit"] == "max-sessions"
        assert refused[0]["limit-value"] == 10
        close_sessions(wire)
        assert wire.run("1+1").value == "2"
        workers = wait_until(lambda: (w := wire.ask("stats")["stats"]["workers"])["starting"] == 0 and w, "calm")
        assert sum(workers.values()) <= 4


def test_a_stopped_broker_finds_its_sessions_alive_when_it_goes_on(start: Start) -> None:
    broker = start("limits.worker-silence-ms=1000")
    with broker.wire() as wire:
        wire.run("x = 1")
        os.kill(broker.pid, signal.SIGSTOP)
        request = wire.send("eval", code="x", session="s")
        assert not wire.socket.poll(2500)
        os.kill(broker.pid, signal.SIGCONT)
        assert wire.answer(request).value == "1"


def test_a_worker_that_is_stopped_is_given_up_after_its_silence(start: Start) -> None:
    broker = start("limits.worker-silence-ms=1000")
    with broker.wire() as wire:
        wire.run("x = 1")
        os.kill(_pids(wire)[1], signal.SIGSTOP)
        answer = wire.ask("eval", code="x", session="s")
        assert answer.status == ["done", "error", "worker-lost"]
        assert "silent" in answer["cause"]
        assert wire.run("2").value == "2"

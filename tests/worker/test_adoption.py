"""A worker between two brokers: what it goes on with, what it tells the next one, and when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from replwire.identities import Principal
from replwire.limits import Limits
from replwire.link import HEADER_BYTES, AdoptBody, AssignBody, FrameKind, Header, encode, pack, unpack

TIMEOUT_S = 20.0
TOKEN = "t0ken"
WORKER = """
import sys
from replwire.limits import Limits
from replworker.boot import WorkerArgs, main
endpoint, directory, ttl_ms = sys.argv[1:]
env = {"PATH": "/usr/bin:/bin"}
main(WorkerArgs(endpoint, "t0ken", "python", None, sys.executable, env, Limits(), directory, (), orphan_ttl_ms=int(ttl_ms)))
"""


class FakeBroker:
    """The broker's end of the link, as far as one worker needs it."""

    def __init__(self, directory: Path) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(f"ipc://{directory}/workers")
        self._peer = b""

    def next(self, *, seconds: float = TIMEOUT_S) -> tuple[Header, bytes]:
        assert self._socket.poll(int(seconds * 1000)), "the worker said nothing"
        self._peer, frame = self._socket.recv_multipart()
        return unpack(frame), frame[HEADER_BYTES:]

    def until(self, kind: FrameKind) -> tuple[Header, Any]:
        """Return the next frame of a kind, its body decoded."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            header, body = self.next()
            if header.kind == kind:
                return header, json.loads(body) if body and not header.first else body
        raise AssertionError(f"no {kind!r} came")

    def send(self, kind: FrameKind, body: bytes = b"", **fields: int) -> None:
        self._socket.send_multipart([self._peer, pack(kind, body, epoch=1, **fields)])

    def assign(self) -> None:
        me = Principal(identity=f"uid:{os.getuid()}")
        body = AssignBody(session="s1", name="work", owner=me, cwd=None, env=[], limits=Limits())
        self.until(FrameKind.READY)
        self.send(FrameKind.ASSIGN, encode(body))
        assert self.until(FrameKind.ASSIGNED)[1]["error"] is None

    def begin(self, code: str, number: int = 1) -> None:
        body = {"id": f"r{number}", "op": "eval", "session": "s1", "code": code}
        self.send(FrameKind.REQUEST, json.dumps(body).encode(), eval=number, route=100 + number)

    def done(self) -> tuple[Header, dict[str, Any]]:
        """Return the header and the final message of the next reply with an outcome."""
        while True:
            header, body = self.until_reply()
            if header.outcome:
                return header, json.loads(body[header.first :])

    def until_reply(self) -> tuple[Header, bytes]:
        while True:
            header, body = self.next()
            if header.kind == FrameKind.REPLY:
                return header, body

    def is_silent(self) -> bool:
        return not self._socket.poll(200)

    def adopt(self, eval_id: int = 0) -> dict[str, Any]:
        """Adopt the worker, and return what it says first."""
        self.send(FrameKind.ADOPT, encode(AdoptBody("b2", eval_id, 100 + eval_id)))
        header, body = self.next()
        assert header.kind == FrameKind.ADOPTED
        return dict(json.loads(body))

    def end(self) -> None:
        self._context.destroy(linger=0)


class Started:
    """A worker process, and the directory of its endpoint."""

    def __init__(self, directory: Path, ttl_ms: int) -> None:
        self.directory = directory
        self.broker = FakeBroker(directory)
        command = [sys.executable, "-c", WORKER, f"ipc://{directory}/workers", str(directory), str(ttl_ms)]
        self.process = subprocess.Popen(command)

    def replace_broker(self) -> FakeBroker:
        """End the broker and start another one, which has heard the worker's HELLO."""
        self.broker.end()
        self.broker = FakeBroker(self.directory)
        return self.broker

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.broker.end()


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Started] = []

    def begin(ttl_ms: int = 60_000) -> Started:
        tmp_path.chmod(0o700)
        started.append(Started(tmp_path, ttl_ms))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def test_what_ran_without_a_broker_is_told_to_the_next_one(start: Start, tmp_path: Path) -> None:
    worker = start()
    worker.broker.assign()
    flag = run_until_flag(worker, "print('seen')\n6 * 7")
    worker.broker.end()
    flag.touch()
    worker.broker = broker = FakeBroker(tmp_path)
    _, hello = broker.until(FrameKind.HELLO)
    assert (hello["token"], hello["session"], hello["epoch"], hello["last_eval"]) == (TOKEN, "s1", 1, 1)
    assert broker.is_silent()
    assert broker.adopt(1) == {"unknown": False}
    header, done = broker.done()
    assert (header.route, header.epoch, done["status"], done["eval-id"]) == (101, 1, ["done"], 1)
    body = {"id": "x", "op": "read", "session": "s1", "eval-id": 1, "offset": 0}
    broker.send(FrameKind.REQUEST, json.dumps(body).encode(), route=500)
    assert json.loads(broker.until_reply()[1])["out"] == "seen\n"


def test_what_still_runs_answers_the_next_broker(start: Start) -> None:
    worker = start()
    worker.broker.assign()
    flag = run_until_flag(worker, "")
    broker = worker.replace_broker()
    assert broker.until(FrameKind.HELLO)[1]["running"] == 1
    assert broker.adopt(1) == {"unknown": False}
    flag.touch()
    assert broker.done()[1]["status"] == ["done"]


def test_an_eval_that_never_came_is_asked_for(start: Start) -> None:
    worker = start()
    worker.broker.assign()
    worker.broker.begin("x = 5")
    worker.broker.done()
    broker = worker.replace_broker()
    broker.until(FrameKind.HELLO)
    assert broker.adopt(2) == {"unknown": True}
    broker.begin("x", 2)
    header, body = broker.until_reply()
    assert b'"value":"5"' in body[: header.first]


def test_the_third_broker_is_told_as_the_second_was(start: Start) -> None:
    worker = start()
    worker.broker.assign()
    worker.broker.begin("x = 5")
    worker.broker.done()
    for _ in range(3):
        broker = worker.replace_broker()
        broker.until(FrameKind.HELLO)
        assert broker.adopt(1) == {"unknown": False}
        assert broker.done()[0].route == 101


def test_an_interpreter_that_died_meanwhile_is_reported(start: Start) -> None:
    worker = start()
    worker.broker.assign()
    flag = run_until_flag(worker, "os._exit(3)")
    broker = worker.replace_broker()
    assert broker.until(FrameKind.HELLO)[1]["running"] == 1
    flag.touch()
    wait_until(lambda: not children(worker.process.pid))
    assert broker.adopt(1) == {"unknown": False}
    assert "code 3" in broker.until(FrameKind.INTERPRETER_EXITED)[1]["cause"]


def run_until_flag(worker: Started, rest: str) -> Path:
    """Begin an eval that waits for a file, then runs the rest; return the file once it waits."""
    flag, waits = worker.directory / "flag", worker.directory / "waits"
    wait = f"import os, time\nopen({str(waits)!r}, 'w')\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)"
    worker.broker.begin(f"{wait}\n{rest}")
    wait_until(waits.exists)
    return flag


def children(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return ""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_worker_without_a_session_ends_with_its_broker(start: Start) -> None:
    worker = start()
    worker.broker.until(FrameKind.READY)
    worker.broker.end()
    assert worker.process.wait(TIMEOUT_S) == 0


def test_with_no_time_to_wait_it_ends_with_its_broker(start: Start) -> None:
    worker = start(0)
    worker.broker.assign()
    worker.broker.end()
    assert worker.process.wait(TIMEOUT_S) == 0


def test_a_worker_that_nobody_adopts_ends(start: Start) -> None:
    worker = start(300)
    worker.broker.assign()
    worker.broker.end()
    assert worker.process.wait(TIMEOUT_S) == 0


def test_a_stopped_worker_that_nobody_adopts_is_killed(start: Start) -> None:
    worker = start(700)
    worker.broker.assign()
    broker = worker.replace_broker()
    broker.until(FrameKind.HELLO)
    worker.process.send_signal(signal.SIGSTOP)
    assert worker.process.wait(TIMEOUT_S) == -signal.SIGKILL


def test_an_adopted_worker_stays_after_that_time(start: Start) -> None:
    worker = start(300)
    worker.broker.assign()
    broker = worker.replace_broker()
    broker.until(FrameKind.HELLO)
    broker.adopt()
    broker.begin("import time; time.sleep(1.5)")
    assert broker.done()[1]["status"] == ["done"]


def test_it_connects_to_nobody_in_a_directory_that_others_may_enter(start: Start, tmp_path: Path) -> None:
    worker = start(1500)
    worker.broker.assign()
    tmp_path.chmod(0o755)
    broker = worker.replace_broker()
    assert worker.process.wait(TIMEOUT_S) == 0
    assert broker.is_silent()

"""Sessions outlive their broker: killed or told to leave them, and started again at the same endpoint."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from kit import BrokerProcess, LineWire, Wire, is_alive, processes_with, wait_until
from replbroker.core.records import WorkerRecord
from replbroker.journal_lines import encode_line, read_journal
from replctl import Client
from replwire.snapshot_file import SnapshotHeader, encode_header

Start = Callable[..., BrokerProcess]
OUTLIVE = "broker.orphan-ttl-ms=60000"
LOOP = "import time\nwhile stay: time.sleep(0.01)\n'over'"


@pytest.fixture(params=["sandboxed", "plain"])
def surviving(request: pytest.FixtureRequest, start: Start) -> Iterator[BrokerProcess]:
    """A broker whose sessions outlive it. A shutdown leaves nothing behind."""
    broker = start(OUTLIVE, "limits.rate-limit-per-min=0", sandbox=request.param == "sandboxed")
    yield broker
    assert broker.stop() == 0
    wait_until(lambda: not processes_with(str(broker.directory)), "the end of every process")


def states(wire: Wire, session: str) -> list[str]:
    return [job["state"] for job in wire.ask("jobs", session=session)["jobs"]]


def ids(wire: Wire) -> dict[str, str]:
    return {entry["name"]: entry["session"] for entry in wire.ask("ls-sessions")["sessions"]}


def begin_all(wire: Wire) -> None:
    """Have a session that is idle, one that runs an eval with two behind it, and one whose result nobody has read."""
    for name in ("idle", "busy", "finished"):
        wire.run("x, stay = 41, True", session=name)
    for code in (LOOP, "stay", "x + 100"):
        wire.send("eval", session="busy", code=code)
    wire.send("eval", session="finished", code="print('told'); x + 1")
    wait_until(lambda: states(wire, "finished") == ["done", "done"], "its end")
    wait_until(lambda: states(wire, "busy") == ["done", "running", "queued", "queued"], "a queue")


def check_all(wire: Wire, known: dict[str, str]) -> None:
    assert ids(wire) == known
    idle = wire.run("x + 1", session="idle")
    assert (idle.value, idle["state"], idle["epoch"]) == ("42", "kept", 1)
    read = wire.ask("read", session="finished", eval_id=2)
    assert (read.value, read.out) == ("42", "told\n")
    assert states(wire, "busy") == ["done", "running", "queued", "queued"]
    wire.ask("interrupt", session="busy")
    assert wire.ask("read", session="busy", eval_id=4, wait_ms=20_000).value == "141"
    assert states(wire, "busy") == ["done"] * 4


def test_a_broker_that_is_killed_takes_no_session_with_it(surviving: BrokerProcess) -> None:
    with surviving.wire() as wire:
        begin_all(wire)
        known = ids(wire)
    surviving.kill()
    surviving.start()
    assert surviving.ready["lost"] == []
    with surviving.wire() as wire:
        check_all(wire, known)


def test_a_broker_that_gets_sigterm_leaves_its_sessions_to_the_next(surviving: BrokerProcess) -> None:
    with surviving.wire() as wire:
        begin_all(wire)
        known = ids(wire)
        waiting = wire.send("eval", session="idle", code="import time; time.sleep(0.3); x")
        wait_until(lambda: states(wire, "idle")[-1] == "running", "its start")
        surviving.process.send_signal(signal.SIGTERM)
        answer = wire.answer(waiting)
        assert (answer["status"], answer["state"], answer["eval-id"]) == (["done", "error", "shutdown"], "kept", 2)
    assert surviving.stop() == 0
    surviving.start()
    with surviving.wire() as wire:
        assert wire.ask("read", session="idle", eval_id=2, wait_ms=20_000).value == "41"
        check_all(wire, known)


def test_a_session_survives_one_broker_after_another(surviving: BrokerProcess) -> None:
    with surviving.wire() as wire:
        wire.run("n = 0")
    for number in range(1, 4):
        surviving.kill()
        surviving.start()
        with surviving.wire() as wire:
            assert wire.run("n += 1; n").value == str(number)


def test_only_a_workers_own_death_ends_its_session(surviving: BrokerProcess) -> None:
    with surviving.wire() as wire:
        wire.run("x = 1", session="dies")
        wire.run("x = 2", session="stays")
        pid = wire.ask("info", session="dies")["info"]["pid"]
        worker = worker_of(pid)
    surviving.kill()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(worker), "its death")
    surviving.start()
    assert surviving.ready["lost"] == ["dies"]
    with surviving.wire() as wire:
        assert wire.run("x", session="stays").value == "2"
        assert wire.run("1", session="dies")["epoch"] == 2


def test_an_adopted_worker_that_dies_ends_its_session(surviving: BrokerProcess) -> None:
    with surviving.wire() as wire:
        wire.run("x = 1")
        worker = worker_of(wire.ask("info", session="s")["info"]["pid"])
    surviving.kill()
    surviving.start()
    with surviving.wire() as wire:
        assert wire.run("x").value == "1"
        running = wire.send("eval", session="s", code=LOOP.replace("stay", "True"))
        wait_until(lambda: states(wire, "s")[-1] == "running", "its start")
        os.kill(worker, signal.SIGKILL)
        lost = wire.answer(running)
        assert lost["status"] == ["done", "error", "worker-lost"]
        assert "the worker process has exited" in lost["cause"]


def test_what_a_session_has_detached_ends_with_it_under_the_next_broker(surviving: BrokerProcess) -> None:
    marker = f"sleep-{os.getpid()}-{surviving.pid}"
    code = (
        f"import subprocess; p = subprocess.Popen(['/bin/sh', '-c', 'sleep 1000; : {marker}'], start_new_session=True)"
    )
    with surviving.wire() as wire:
        wire.run(code)
    surviving.kill()
    surviving.start()
    with surviving.wire() as wire:
        assert wire.run("p.poll()")["status"] == ["done"]
        assert processes_with(marker)
        wire.ask("close", session="s")
    wait_until(lambda: not processes_with(marker), "its end")


def worker_of(interpreter: int) -> int:
    """Return the pid of the worker above an interpreter."""
    pid = interpreter
    while "forkserver" not in Path(f"/proc/{pid}/cmdline").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1
    return pid


def test_with_no_time_to_wait_sessions_end_with_their_broker(start: Start) -> None:
    broker = start("broker.orphan-ttl-ms=0")
    with broker.wire() as wire:
        wire.run("x = 1")
    broker.kill()
    wait_until(lambda: not processes_with(str(broker.directory)), "the end of every process")
    broker.start()
    assert broker.ready["lost"] == ["s"]


def test_sessions_that_nobody_goes_on_with_end(start: Start) -> None:
    broker = start("broker.orphan-ttl-ms=500")
    with broker.wire() as wire:
        wire.run("x = 1")
    broker.kill()
    assert processes_with(str(broker.directory))
    wait_until(lambda: not processes_with(str(broker.directory)), "the end of every process")


def test_another_broker_that_starts_meanwhile_does_no_harm(surviving: BrokerProcess, start: Start) -> None:
    with surviving.wire() as wire:
        wire.run("x = 1")
    surviving.kill()
    start()  # removes the directories of dead brokers
    surviving.start()
    with surviving.wire() as wire:
        assert wire.run("x").value == "1"


def test_a_restart_keeps_process_and_sessions(surviving: BrokerProcess) -> None:
    with surviving.wire() as wire:
        begin_all(wire)
        known = ids(wire)
    command = [sys.executable, "-m", "replctl", "restart", "--json", "--endpoint", surviving.endpoint]
    with surviving.wire() as uploading:
        part = encode_header(SnapshotHeader(runtime="python", runtime_version="3", saved_at="now", count=1, bytes=9))
        assert uploading.ask("put-snapshot", data=base64.b64encode(part).decode()).status == ["done"]
        assert len(list(surviving.directory.glob("snapshots/*"))) == 1
        ended = subprocess.run(command, env=surviving.environ, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr + surviving.log_text()
    assert surviving.process.poll() is None
    assert list(surviving.directory.glob("snapshots/*")) == []  # an upload ends with its connection
    with surviving.wire() as wire:
        check_all(wire, known)
        worker = worker_of(wire.ask("info", session="idle")["info"]["pid"])
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: states(wire, "idle"), "an answer")
        assert "was killed by SIGKILL" in wire.run("x", session="idle")["cause"]


def test_a_client_is_told_whether_its_eval_ran_under_the_broker_that_was_killed(start: Start) -> None:
    """Over ZeroMQ and over lines, while the eval runs and after its end."""
    broker = start(OUTLIVE, "broker.unix=/DIRECTORY/run/lines.sock")
    with broker.wire() as wire:
        wire.run("x, stay = 41, True", session="busy")
        instance = wire.ask("describe")["instance"]
        wire.send("eval", session="busy", code=LOOP, idempotency_key="runs")
        wire.send("eval", session="busy", code="x + 1", idempotency_key="waits")
        wait_until(lambda: states(wire, "busy") == ["done", "running", "queued"], "its start")
    broker.kill()
    broker.start()
    with Client(broker.endpoint, start=False) as client:
        assert client.describe().instance != instance
        for key, eval_id in (("runs", 2), ("waits", 3)):
            found = client.find_eval(key, instance, age=60)
            assert (found.outcome, found.status, found.eval_id) == ("ran", ["done", "running"], eval_id)
        assert client.find_eval("lost", instance, age=60).outcome == "did-not-run"
        assert client.find_eval("lost", "another", age=60).outcome == "unknown"
        client.interrupt("busy")
        assert client.read("busy", 3, wait=20).value == "42"
        assert [job.state for job in client.jobs("busy")] == ["done"] * 3
    with LineWire(broker.listening["unix"]) as wire:
        assert wire.ask("find-eval", idempotency_key="waits", instance=instance)["outcome"] == "ran"
        assert wire.ask("find-eval", idempotency_key="lost", instance=instance)["outcome"] == "did-not-run"


def test_a_session_that_ends_with_its_broker_refuses_to_be_kept(start: Start) -> None:
    broker = start("broker.orphan-ttl-ms=0")
    with broker.wire() as wire:
        wire.run("x = 1")
        assert wire.ask("shutdown", keep_sessions=True)["status"] == ["done", "error", "not-supported"]
        assert wire.run("x").value == "1"


def interpreter_of(wire: Wire, session: str) -> int:
    return int(wire.ask("info", session=session)["info"]["pid"])


def test_a_session_and_its_branches_outlive_the_broker(start: Start) -> None:
    broker = start(OUTLIVE, "limits.rate-limit-per-min=0", sandbox=True)
    with broker.wire() as wire:
        wire.run("x, stay = 41, True")
        assert wire.ask("branch", session="s", name="try").status == ["done"]
        wire.run("x = 'a branch'", "try")
        wire.send("eval", session="try", code=LOOP)
        wait_until(lambda: states(wire, "try")[-1] == "running", "its start")
        known = ids(wire)
    broker.kill()
    broker.start()
    assert broker.ready["lost"] == []
    with broker.wire() as wire:
        assert ids(wire) == known
        assert wire.run("x += 1; x").value == "42"
        assert states(wire, "try")[-1] == "running"
        wire.ask("interrupt", session="try")
        assert wire.ask("branch", session="try", name="third").status == ["done"]
        wire.ask("close", session="s")
    assert broker.stop(signal.SIGTERM) == 0
    broker.start()
    assert broker.ready["lost"] == []
    with broker.wire() as wire:
        assert [wire.run("x", name).value for name in ("try", "third")] == ["'a branch'"] * 2
        worker = worker_of(interpreter_of(wire, "try"))
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: wire.run("1", "third")["epoch"] == 2, "its loss")
        assert wire.run("1", "try")["epoch"] == 2
    assert broker.stop() == 0
    wait_until(lambda: not processes_with(str(broker.directory)), "the end of every process")


def test_a_branch_that_the_next_broker_does_not_have_ends_and_leaves_the_others(start: Start) -> None:
    broker = start("broker.orphan-ttl-ms=3000", sandbox=True)
    with broker.wire() as wire:
        wire.run("x = 41")
        for name in ("told", "forgotten"):
            assert wire.ask("branch", session="s", name=name).status == ["done"]
        ended = [interpreter_of(wire, name) for name in ("told", "forgotten")]
    broker.kill()
    path = next(broker.directory.glob("sessions-*.ndjson"))
    saved = read_journal(path)[0]
    records = [replace(each, open=False, details=None) for each in saved.sessions if each.name != "s"]
    with path.open("ab") as file:
        for record in (*records, WorkerRecord(max(each.worker for each in saved.workers))):
            file.write(encode_line(record))
    broker.start()
    assert broker.ready["lost"] == []
    wait_until(lambda: not any(is_alive(pid) for pid in ended), "the end of both")
    with broker.wire() as wire:
        assert wire.run("x + 1").value == "42"
        assert wire.ask("branch", session="s", name="told").status == ["done"]

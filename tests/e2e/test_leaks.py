"""After 500 resets and 1000 evals the broker is what it was: measured, not assumed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from kit import CROWDED, BrokerProcess, Wire, wait_until
from live_processes import read_each

Start = Callable[..., BrokerProcess]


def _fds(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def _files(directory: Path) -> list[str]:
    found = (str(path.relative_to(directory)) for path in directory.rglob("*"))
    return sorted(re.sub(r"mounts/\d+-\w+", "mounts/WORKER", name) for name in found)


def _zombies(broker: BrokerProcess) -> list[int]:
    stats = read_each(broker.process_tree(), "stat", at_least=4)
    return [pid for pid, text in stats.items() if text.rpartition(b")")[2].split()[0] == b"Z"]


def _work(wire: Wire, resets: int, evals: int) -> None:
    wire.run("import subprocess", session="w")
    for _ in range(resets):
        assert wire.ask("reset", session="w").status == ["done"]
        wire.run("import subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True)", session="w")
    for number in range(evals):
        assert wire.run(f"{number}", session="w").value == str(number)


def _pool_full(wire: Wire) -> None:
    wait_until(lambda: wire.ask("stats")["stats"]["workers"] == {"starting": 0, "warm": 2, "assigned": 1}, "pool full")


def _calm(broker: BrokerProcess, wire: Wire) -> dict[str, object]:
    """Return the resources in use once the pool is full again and no process is dying."""
    _pool_full(wire)
    wait_until(lambda: not _zombies(broker), "no zombies")
    wait_until(lambda: _files(broker.directory).count("packages/mounts/WORKER") == 3, "mounts of the workers that live")
    wait_until(lambda: not any((broker.directory / "packages/.removed").iterdir()), "what was set aside is deleted")
    stats = wire.ask("stats")["stats"]
    return {
        "fds": _fds(broker.pid),
        "processes": len(broker.process_tree()),
        "files": _files(broker.directory),
        "slots": stats["slots"]["taken"],
        "routes": stats["routes"],
        "strays": sum(b"sleep" in text for text in read_each(broker.process_tree(), "cmdline", at_least=4).values()),
    }


def test_nothing_leaks_over_500_resets_and_1000_evals(start: Start) -> None:
    broker = start("limits.rate-limit-per-min=0")
    with broker.wire() as wire:
        _work(wire, resets=20, evals=50)
        before, memory = _calm(broker, wire), _rss_kib(broker.pid)
        _work(wire, resets=500, evals=1000)
        assert _calm(broker, wire) == before
        assert before["strays"] == 1  # the one that the last eval of the living session started
        assert _rss_kib(broker.pid) - memory < 8 * 1024


def test_a_clean_end_leaves_no_process_and_no_socket(start: Start) -> None:
    broker = start("transcript.backend=off")
    with broker.wire() as wire:
        wire.run("import subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True)")
        family = broker.process_tree()
    assert broker.stop() == 0
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]
    rest = [name for name in _files(broker.directory) if not re.fullmatch(r"sessions-\w+\.ndjson(\.lock)?", name)]
    empty = ["packages", "packages/.removed", "packages/mounts"]
    assert rest == ["audit.ndjson", "config.toml", "log", *empty, "run", "run/b.sock.lock"]


def test_a_broker_with_more_than_a_thousand_descriptors_ends_as_cleanly(start: Start) -> None:
    broker = start(through=[sys.executable, "-c", CROWDED])
    with broker.wire() as wire:
        wire.run("1")
        family = broker.process_tree()
    assert broker.stop() == 0
    assert "Traceback" not in broker.log_text()
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


NO_PIDFD = """
import errno, os, sys
from replctl.main import main
real = os.pidfd_open

def refused(pid, flags=0):
    os.pidfd_open = real
    raise OSError(errno.EMFILE, "Too many open files")

os.pidfd_open = refused
sys.argv[:4] = ["replctl"]  # in the place of: -c python -m replctl
main()
"""


def test_a_worker_that_cannot_be_watched_is_not_left_alive(start: Start) -> None:
    broker = start(warm=1, through=[sys.executable, "-c", NO_PIDFD])
    with broker.wire() as wire:
        wire.run("1")
        ready = {"starting": 0, "warm": 1, "assigned": 1}
        wait_until(lambda: wire.ask("stats")["stats"]["workers"] == ready, "two workers are there")
        assert "could not be started: OSError" in broker.log_text()
        # The broker, its fork server and resource tracker, and two workers with an interpreter each.
        wait_until(lambda: len(broker.process_tree()) == 7, "nothing else lives")


def test_clients_that_come_and_go_leave_nothing_in_the_broker(start: Start) -> None:
    # The files of the audit and of transcripts are opened behind the first answer.
    broker = start("limits.rate-limit-per-min=0", "transcript.backend=off", "broker.audit=false")
    with broker.wire() as wire:
        wire.run("1")
        _pool_full(wire)
        before = _fds(broker.pid)
    for _ in range(200):
        with broker.wire() as passing:
            assert passing.ask("ping").status == ["done", "pong"]
    with broker.wire() as wire:
        wait_until(lambda: wire.ask("stats")["stats"]["connections"] == 1, "connections are counted down")
        wait_until(lambda: _fds(broker.pid) == before, "descriptors are given back")

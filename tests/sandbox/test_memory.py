"""Memory in sum, with real sessions: counted by a control group, or process by process where there is none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import USERS, begin, end
from kit import BrokerProcess, Wire, close_sessions, is_alive, wait_until
from live_processes import read_each
from replworker.sandbox.report import SandboxReport

MIB = 1 << 20
LIMIT = 64 * MIB
HOLD = "held = b'x' * ({} << 20)"
FAMILY = """
import os, time
for n in range(4):
    if os.fork() == 0:
        held = b"x" * (20 << 20)
        time.sleep(60)
time.sleep(60)
"""
OVER_LIMIT_UNSEEN = """
import os, time
held = []
while True:
    held.append(os.memfd_create("a"))
    os.write(held[-1], bytes(1 << 20))
    time.sleep(0.02)
"""
SHARED_AND_FINE = """
import os, time
held = b"x" * (25 << 20)
for n in range(6):
    if os.fork() == 0:
        time.sleep(1)
        os._exit(0)
for n in range(6):
    os.wait()
"""


@pytest.fixture(scope="module", params=USERS)
def ungrouped(request: pytest.FixtureRequest, report: SandboxReport) -> Iterator[BrokerProcess]:
    """A broker that finds no control groups: an ordinary user's, and root's where they are out of its sight."""
    assert report.ok
    broker = begin(request.param, f"sandbox.memory-bytes={LIMIT}", mask="/sys/fs/cgroup")
    with broker.wire() as wire:
        assert "memory" in wire.ask("describe")["sandbox"]["missing"]
    yield broker
    end(broker)


@pytest.fixture
def wire(ungrouped: BrokerProcess) -> Iterator[Wire]:
    with ungrouped.wire() as wire:
        yield wire
        close_sessions(wire)


@pytest.mark.parametrize("code", [FAMILY, OVER_LIMIT_UNSEEN], ids=["a family of processes", "files that nobody sees"])
def test_a_session_over_its_limit_ends_with_the_true_cause_and_no_other(wire: Wire, code: str) -> None:
    assert wire.run("x = 1", session="other")["state"] == "kept"
    pid = wire.run_checkpointed("import os; x = 2") and wire.ask("info", session="s")["info"]["pid"]
    ended = wire.run(code)
    assert ended.status == ["done", "error", "worker-lost"]
    assert ended["state"] == "rolled-back"
    assert ended["cause"].startswith("killed: its processes used ")
    assert ended["cause"].endswith(" MiB, limit 64 MiB (sandbox.memory-bytes)")
    assert int(ended["cause"].split()[4]) > 64
    wait_until(lambda: not is_alive(pid), "what it started is gone")
    assert wire.run("x", session="other").value == "1"
    assert wire.run("x").value == "2"


def test_a_family_is_limited_in_sum_and_its_largest_session_ends(wire: Wire) -> None:
    wire.run_checkpointed("held = b'x' * (20 << 20); import os, time; x = 2")
    assert wire.ask("branch", session="s", name="try").status == ["done"]
    wire.run_checkpointed("x = 3", "try")
    ended = wire.run(FAMILY, "try")
    assert ended.status == ["done", "error", "worker-lost"]
    assert ended["state"] == "rolled-back"
    assert "limit 64 MiB (sandbox.memory-bytes)" in ended["cause"]
    assert wire.run("x, len(held) >> 20", "try").value == "(3, 20)"
    answer = wire.run("x, len(held) >> 20")
    assert (answer.value, answer["state"]) == ("(2, 20)", "kept")


def test_processes_that_share_their_pages_are_counted_once(wire: Wire) -> None:
    assert wire.run(SHARED_AND_FINE)["state"] == "kept"


def test_one_process_that_takes_too_much_raises_and_lives(wire: Wire) -> None:
    ended = wire.run(HOLD.format(70))
    assert ended["ex"]["type"] == "MemoryError"
    assert ended["state"] == "kept"


def test_info_says_what_is_used_and_what_is_left(wire: Wire) -> None:
    wire.run(HOLD.format(20))

    def used() -> bool:  # while a checkpoint is taken, its pages may count twice
        memory.update(wire.ask("info", session="s")["info"]["memory"])
        return 20 * MIB < memory["used"] < 45 * MIB

    memory: dict[str, int] = {}
    wait_until(used, "what is used is counted")
    assert memory["limit"] == LIMIT
    assert memory["available"] == LIMIT - memory["used"]
    wait_until(lambda: wire.ask("stats")["stats"]["memory"]["used"] > 20 * MIB, "its worker reports")


def test_the_kernel_prefers_interpreters_then_workers_and_never_the_broker(
    wire: Wire, ungrouped: BrokerProcess
) -> None:
    wire.run("1")
    inside = wire.ask("info", session="s")["info"]["pid"]
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (ungrouped.pid, inside)]
    assert scores == [int(Path("/proc/self/oom_score_adj").read_text()), 800]
    every = set(map(int, read_each(ungrouped.process_tree(), "oom_score_adj").values()))
    assert every == {scores[0], 250, 500, 800}  # 500: what waits as a checkpoint, or for a session


@pytest.mark.parametrize("who", USERS)
def test_the_sum_of_an_identity_ends_its_largest_session_with_and_without_groups(
    who: str, report: SandboxReport
) -> None:
    assert report.ok
    broker = begin(who, f"limits.max-identity-memory-bytes={120 * MIB}", warm=1)
    try:
        with broker.wire() as wire:
            for name, size in (("a", 10), ("b", 40)):
                assert wire.run(HOLD.format(size), session=name)["state"] == "kept"
            ended = wire.run(HOLD.format(80) + "\nimport time; time.sleep(20)", session="c")
            assert ended.status == ["done", "error", "worker-lost"]
            assert f"limit {120} MiB, and this is the largest session of the identity that used most" in ended["cause"]
            assert [wire.run("len(held) >> 20", session=name).value for name in "ab"] == ["10", "40"]
            wait_until(lambda: "ended: killed: the sessions of" in broker.log_text(), "the log says so")
        audit = broker.directory / "audit.ndjson"
        wait_until(lambda: "memory-limit-reached" in audit.read_text(), "the audit says so")
        line = next(json.loads(line) for line in audit.read_text().splitlines() if "memory-limit-reached" in line)
        assert (line["client"], line["identity"], line["session"], line["op"]) == ("broker", "broker", "c", None)
    finally:
        end(broker)


def test_nothing_begins_while_the_machine_has_too_little_left_and_it_heals(report: SandboxReport) -> None:
    """Of what it has left at this moment, some more is asked."""
    assert report.ok
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    left = int(lines["MemAvailable"].split()[0]) * 1024
    broker = begin("root" if os.getuid() == 0 else "user", f"limits.min-free-memory-bytes={left + 3000 * MIB}", warm=1)
    try:
        with broker.wire() as wire:
            refused = wire.run("1")
            assert refused.status == ["done", "error", "memory-limit-reached"]
            assert refused["limit"] == "min-free-memory-bytes"
            assert refused["retry-after-ms"]
            assert wire.ask("ls-sessions")["sessions"] == []
    finally:
        end(broker)

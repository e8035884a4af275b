"""Limits of one session as its client meets them: the verdict names the limit, and says whether state was kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_targets import begin, end
from kit import BrokerProcess, CollectedReplies, Wire

MIB = 1 << 20
SHARED = "import mmap\nheld = mmap.mmap(-1, 1 << 30)\nwhile True: held.write(bytes(1 << 20))"


@pytest.fixture(scope="module")
def broker(who: str) -> Iterator[BrokerProcess]:
    broker = begin(who, "sandbox.file-bytes=1000000", "sandbox.tmp-bytes=4000000", "sandbox.pids=64")
    yield broker
    end(broker)


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    with broker.wire() as wire:
        wire.ask("new-session", name="s", memory_bytes=128 * MIB)
        wire.run("kept = 1")
        yield wire
        wire.ask("close", session="s")


def lives(wire: Wire, answer: CollectedReplies) -> bool:
    """The eval's code failed, and its session has what it had."""
    return answer["state"] == "kept" and wire.run("kept").value == "1"


def test_memory_runs_out_as_an_exception_that_the_code_may_catch(wire: Wire) -> None:
    answer = wire.run("held = bytearray(300 << 20)")
    assert answer["ex"]["type"] == "MemoryError"
    assert lives(wire, answer)
    assert wire.run("try: bytearray(300 << 20)\nexcept MemoryError: print('less, then')").out == "less, then\n"


@pytest.mark.usefixtures("grouped")
@pytest.mark.needs_root("an ordinary user has no control groups")
@pytest.mark.parametrize(("asked", "expected"), [({}, "1024 MiB"), ({"memory_bytes": 200 * MIB}, "200 MiB")])
def test_a_kill_for_memory_is_told_with_the_limit_and_what_became_of_the_state(
    asked: dict[str, int], expected: str
) -> None:
    broker = begin("root")
    try:
        with broker.wire() as wire:
            wire.ask("new-session", name="s", **asked)
            answer = wire.run(SHARED)
            assert answer.status == ["done", "error", "worker-lost"]
            assert (answer["cause"], answer["state"]) == (
                f"out of memory: {expected} (sandbox.memory-bytes)",
                "rolled-back",
            )
            assert answer["err"].endswith(f"out of memory: {expected} (sandbox.memory-bytes)")
            after = wire.run("1")
            assert (after.value, after["epoch"]) == ("1", 2)
    finally:
        end(broker)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('big', 'wb').write(bytes(2_000_000))", "File too large"),
        (
            "open('/tmp/a', 'wb', 0).write(bytes(900_000)); import shutil\nfor n in range(9): shutil.copy('/tmp/a', f'/tmp/{n}')",
            "No space left on device",
        ),
        ("import os; held = [os.dup(0) for _ in range(300)]", "Too many open files"),
        (
            "import subprocess; held = [subprocess.Popen(['sleep', '60']) for _ in range(80)]",
            "Resource temporarily unavailable",
        ),
    ],
    ids=["file size", "tmp", "open files", "processes"],
)
def test_other_limits_are_the_codes_own_errors_and_cost_no_state(wire: Wire, code: str, expected: str) -> None:
    answer = wire.run(code)
    assert expected in answer["ex"]["message"]
    assert lives(wire, answer)


@pytest.mark.usefixtures("grouped")
@pytest.mark.needs_root("an ordinary user has no control groups")
def test_a_share_of_the_processor_is_all_there_is() -> None:
    broker = begin("root")
    try:
        with broker.wire() as wire:
            wire.ask("new-session", name="s", cpu_percent=20)
            pid = wire.ask("info", session="s")["info"]["pid"]
            assert wire.run("while True: pass", timeout_ms=1000).status == ["done", "error", "timeout"]
            assert throttled(pid) > 0
    finally:
        end(broker)


def throttled(pid: int) -> int:
    """Return how often a process's control group has used up its share."""
    groups = [line.rstrip().split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    [place] = [path for _, controllers, path in groups if "cpu" in controllers.split(",") or controllers == ""][:1]
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for words in mounts:
        stat = Path(words[4] + place, "cpu.stat")
        if "cgroup" in " ".join(words) and stat.exists():
            fields = dict(line.split() for line in stat.read_text().splitlines())
            return int(fields["nr_throttled"])
    raise AssertionError(f"no cpu.stat for {place}")


def test_a_request_can_only_ask_for_less(wire: Wire) -> None:
    refused = wire.ask("new-session", name="t", pids=65)
    assert refused.status == ["done", "error", "invalid-request"]
    assert refused["err"] == "pids: 65 is more than this broker grants (64)"


def test_info_says_what_holds(wire: Wire) -> None:
    reply = wire.ask("info", session="s")["info"]["sandbox"]
    assert reply["tighter"] == {"memory-bytes": 128 * MIB}
    assert reply["layers"] == wire.ask("describe")["sandbox"]["layers"]

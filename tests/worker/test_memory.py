"""Memory of a session's processes: measured where no control group counts, often while it grows, seldom while not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replworker.memory import MemoryWatch
from replworker.processes import ProcessTree
from replworker.sandbox import group_memory
from replworker.sandbox_family import SandboxFamily

MIB = 1 << 20
FAMILY = """
import os, sys
held = bytearray(os.urandom(4096) * (30 << 8))
for _ in range(3):
    if os.fork() == 0:
        break
print(flush=True)
sys.stdin.read()
"""
FILES = """
import os, mmap, sys
unseen = os.memfd_create("a")
os.write(unseen, bytes(20 << 20))
shared = mmap.mmap(-1, 10 << 20)
shared.write(bytes(10 << 20))
print(flush=True)
sys.stdin.read()
"""
THREAD = """
import os, sys, threading
def work():
    if os.fork() == 0:
        held = bytearray(os.urandom(4096) * (30 << 8))
    print(flush=True)
    sys.stdin.read()
threading.Thread(target=work).start()
"""


@contextmanager
def running(code: str, lines: int) -> Iterator[ProcessTree]:
    """Processes that hold what they hold."""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        for _ in range(lines):
            child.stdout.readline()
        yield ProcessTree(child.pid)
    finally:
        child.stdin.close()
        child.wait(10)
        child.stdout.close()


def test_pages_that_processes_share_count_once_where_it_matters() -> None:
    with running(FAMILY, 4) as tree:
        assert tree.memory() > 110 * MIB
        assert 30 * MIB < tree.memory(exact_above=60 * MIB) < 60 * MIB


def test_files_in_memory_count_though_nobody_has_mapped_them() -> None:
    with running(FILES, 1) as tree:
        assert 22 * MIB < tree.memory() < 50 * MIB


def test_children_that_a_thread_has_started_count() -> None:
    with running(THREAD, 2) as tree:
        assert tree.memory() > 30 * MIB


def test_a_tree_that_has_ended_uses_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert ProcessTree(int(done.stdout)).memory(exact_above=0) == 0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_it_is_looked_at_oftener_while_it_grows_and_seldom_while_it_rests() -> None:
    used = [20 * MIB]
    watch = MemoryWatch(lambda _: used[0], 200 * MIB)
    pauses = []
    for grown in (20, 20, 20, 20, 20, 20, 60, 100, 100):
        used[0] = grown * MIB
        pauses.append(watch.sample(Clock()).pause_s)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 0.05, 0.05, 0.1]
    for _ in range(20):
        watch.sample(Clock())
    assert watch.is_idle
    assert watch.on_eval_start() == 0.25
    assert not watch.is_idle


def test_a_look_that_is_dear_is_taken_seldom() -> None:
    clock = Clock()

    def measure(_: int | None) -> int:
        clock.now += 0.2
        return clock.now * 100 * MIB  # type: ignore[return-value]

    assert MemoryWatch(measure, None).sample(clock).pause_s == 4.0


def test_a_change_is_told_once_and_a_small_one_not() -> None:
    used = [0]
    watch = MemoryWatch(lambda _: used[0], 160 * MIB)
    results = []
    for now in (20, 25, 29, 29, 15):
        used[0] = now * MIB
        results.append(watch.sample(Clock()).changed)
    assert results == [True, False, True, False, True]


def test_a_session_over_its_limit_is_told_with_both_figures() -> None:
    watch = MemoryWatch(lambda doubt: 300 * MIB if doubt == 256 * MIB else 0, 256 * MIB)
    assert watch.sample(Clock()).cause == "killed: its processes used 300 MiB, limit 256 MiB (sandbox.memory-bytes)"
    assert MemoryWatch(lambda _: 300 * MIB, None).sample(Clock()).cause is None


def group(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def test_a_control_groups_memory_is_what_cannot_be_taken_back(tmp_path: Path) -> None:
    first = group(
        tmp_path / "one",
        memory__usage_in_bytes="1000\n",
        memory__limit_in_bytes="9223372036854771712\n",
        memory__stat="cache 5\ntotal_cache 600\ntotal_shmem 100\n",
    )
    assert group_memory.used_bytes(first, 1) == 500
    assert group_memory.limit_bytes(first, 1) is None
    second = group(
        tmp_path / "two", memory__current="1000\n", memory__max="4000\n", memory__stat="file 600\nshmem 100\n"
    )
    assert group_memory.used_bytes(second, 2) == 500
    assert group_memory.limit_bytes(second, 2) == 4000
    assert group_memory.used_bytes(tmp_path / "gone", 2) == 0


def test_the_groups_around_one_count_where_they_have_a_bound(tmp_path: Path) -> None:
    root = group(tmp_path / "tree", cgroup__procs="")
    above = group(root / "service", cgroup__procs="", memory__max="5000\n")
    own = group(above / "leaf", cgroup__procs="", memory__max="max\n")
    assert list(group_memory.limited_ancestors(own, 2)) == [above]


def test_this_process_is_preferred_when_memory_runs_out_and_never_less_than_before() -> None:
    code = (
        "from replworker.runtimes.process_start import raise_oom_score as up\n"
        "for score in (300, 100, 500): up(score); print(open('/proc/self/oom_score_adj').read().strip())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.split() == ["300", "300", "500"]


def test_of_a_family_one_session_is_ended_until_its_memory_is_freed() -> None:
    nothing: Any = None
    family = SandboxFamily()
    family.join(nothing, nothing)
    family.note_end(100.0)
    assert not family.is_freeing(100.1)
    family.join(nothing, nothing)
    assert not family.is_freeing(200.0)
    family.note_end(200.0)
    assert [family.is_freeing(now) for now in (200.1, 200.4, 200.6)] == [True, True, False]

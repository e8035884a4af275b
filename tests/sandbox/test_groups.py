"""Control groups are found where they can be made, limited, and taken away again. On trees of plain files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replwire.policy import SandboxLimits
from replworker.sandbox.cgroup import Cgroup, CgroupRoot, find_cgroup_root, remove_orphans

USAGE = SandboxLimits(memory_bytes=128 << 20, pids=20, cpu_percent=150)


def proc(tmp_path: Path, groups: str, mounts: list[str]) -> Path:
    directory = tmp_path / "proc"
    directory.mkdir()
    (directory / "cgroup").write_text(groups)
    (directory / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    return directory


def first(tmp_path: Path, name: str, root: str = "/") -> str:
    return f"35 31 0:32 {root} {tmp_path}/{name} rw,relatime - cgroup cgroup rw,{name}"


def second(tmp_path: Path) -> str:
    return f"41 31 0:38 / {tmp_path}/two rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def make(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in {"cgroup_procs": "", **files}.items():
        (directory / name.replace("_", ".", 1)).write_text(text)
    return directory


def test_version_1_has_a_directory_for_each_controller(tmp_path: Path) -> None:
    make(tmp_path / "memory/service")
    make(tmp_path / "pids")
    found = find_cgroup_root(
        proc(
            tmp_path,
            "4:memory:/service\n8:pids:/\n9:name=systemd:/\n0::/\n",
            [first(tmp_path, "memory"), first(tmp_path, "pids")],
        )
    )
    assert found == CgroupRoot(1, {"memory": f"{tmp_path}/memory/service", "pids": f"{tmp_path}/pids"}, None)


def test_a_mount_that_shows_a_part_of_the_tree_is_understood(tmp_path: Path) -> None:
    make(tmp_path / "memory/inner")
    found = find_cgroup_root(proc(tmp_path, "4:memory:/docker/abc/inner\n", [first(tmp_path, "memory", "/docker/abc")]))
    assert found.directories == {"memory": f"{tmp_path}/memory/inner"}


def test_a_directory_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    found = find_cgroup_root(proc(tmp_path, "4:memory:/not-there\n", [first(tmp_path, "memory")]))
    assert (found.directories, found.problem) == ({}, f"{tmp_path}/memory/not-there is not writable")


def test_version_2_divides_a_group_that_is_the_brokers_alone(tmp_path: Path) -> None:
    own = make(
        tmp_path / "two/app",
        cgroup_procs=f"{os.getpid()}\n",
        cgroup_controllers="cpu memory pids io\n",
        cgroup_subtree_control="",
    )
    make(own / "replctl-broker")
    found = find_cgroup_root(proc(tmp_path, "0::/app\n", [second(tmp_path)]))
    assert found == CgroupRoot(2, dict.fromkeys(("cpu", "memory", "pids"), str(own)), None)
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (own / "replctl-broker/cgroup.procs").read_text() == str(os.getpid())


def test_version_2_leaves_a_group_alone_that_others_are_in(tmp_path: Path) -> None:
    own = make(
        tmp_path / "two/shell",
        cgroup_procs=f"1\n{os.getpid()}\n",
        cgroup_controllers="memory pids",
        cgroup_subtree_control="",
    )
    found = find_cgroup_root(proc(tmp_path, "0::/shell\n", [second(tmp_path)]))
    assert found.directories == {}
    assert "processes other than the broker" in (found.problem or "")
    assert (own / "cgroup.subtree_control").read_text() == ""


def test_controllers_of_no_use_are_none(tmp_path: Path) -> None:
    make(tmp_path / "two", cgroup_controllers="hugetlb\n")
    assert "no memory or pids controller" in (
        find_cgroup_root(proc(tmp_path, "0::/\n", [second(tmp_path)])).problem or ""
    )


def test_a_machine_without_any_says_so(tmp_path: Path) -> None:
    assert find_cgroup_root(proc(tmp_path, "", [])).problem == "no cgroup controllers are mounted"


def test_version_1_is_limited_in_its_own_words(tmp_path: Path) -> None:
    directories = {name: str(make(tmp_path / name)) for name in ("memory", "pids", "cpu")}
    group = Cgroup(CgroupRoot(1, directories, None), USAGE)
    group.create()
    assert (group.directories["memory"] / "memory.limit_in_bytes").read_text() == str(128 << 20)
    assert not (
        group.directories["memory"] / "memory.memsw.limit_in_bytes"
    ).exists()  # a kernel without swap accounting
    assert (group.directories["pids"] / "pids.max").read_text() == "22"
    assert (group.directories["cpu"] / "cpu.cfs_quota_us").read_text() == "150000"


def test_version_2_is_limited_in_its_own_words(tmp_path: Path) -> None:
    group = Cgroup(CgroupRoot(2, dict.fromkeys(("memory", "pids", "cpu"), str(make(tmp_path / "own"))), None), USAGE)
    group.create()
    directory = group.directories["memory"]
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        "memory.max": str(128 << 20),
        "pids.max": "22",
        "cpu.max": "150000 100000",
    }


def test_two_groups_of_one_process_are_two(tmp_path: Path) -> None:
    home = CgroupRoot(1, {"pids": str(make(tmp_path / "pids"))}, None)
    groups = [Cgroup(home, USAGE) for _ in range(2)]
    for group in groups:
        group.create()
    assert len({group.directories["pids"] for group in groups}) == 2


@pytest.mark.parametrize(
    ("version", "file", "text", "expected"),
    [
        (1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", True),
        (1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", False),
        (2, "memory.events", "low 0\nmax 5\noom 1\noom_kill 1\noom_group_kill 1\n", True),
        (2, "memory.events", "low 0\noom_kill 0\n", False),
    ],
)
def test_a_death_for_memory_is_known(tmp_path: Path, version: int, file: str, text: str, expected: bool) -> None:
    group = Cgroup(CgroupRoot(version, {"memory": str(make(tmp_path / "memory"))}, None), USAGE)
    group.create()
    (group.directories["memory"] / file).write_text(text)
    assert group.was_oom_killed() is expected


@pytest.mark.parametrize(
    ("version", "file", "text", "expected"),
    [
        (1, "memory.max_usage_in_bytes", f"{128 << 20}\n", True),
        (1, "memory.max_usage_in_bytes", f"{127 << 20}\n", True),
        (1, "memory.max_usage_in_bytes", f"{100 << 20}\n", False),
        (2, "memory.events", "low 0\nmax 5\noom 1\noom_kill 1\n", True),
        (2, "memory.events", "low 0\nmax 0\noom 0\noom_kill 1\noom_group_kill 1\n", False),
    ],
)
def test_whose_limit_a_death_for_memory_met_is_known(
    tmp_path: Path, version: int, file: str, text: str, expected: bool
) -> None:
    group = Cgroup(CgroupRoot(version, {"memory": str(make(tmp_path / "memory"))}, None), USAGE)
    group.create()
    (group.directories["memory"] / file).write_text(text)
    assert group.has_hit_own_limit() is expected


def test_groups_of_workers_that_are_gone_are_swept_and_no_others(tmp_path: Path) -> None:
    directory = make(tmp_path / "pids")
    for name in ("replctl-4194305-0", f"replctl-{os.getpid()}-0", "replctl-broker", "system"):  # no pid is that high
        (directory / name).mkdir()
    assert remove_orphans(CgroupRoot(1, {"pids": str(directory)}, None)) == 0
    assert sorted(path.name for path in directory.iterdir() if path.is_dir()) == sorted(
        [f"replctl-{os.getpid()}-0", "replctl-broker", "system"]
    )


def test_without_groups_there_is_nothing_to_do() -> None:
    group = Cgroup(CgroupRoot(), USAGE)
    group.create()
    group.join()
    assert group.directories == {}
    assert not group.was_oom_killed()
    assert not group.has_hit_own_limit()
    assert group.remove()

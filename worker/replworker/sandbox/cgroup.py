"""Control groups: the only limits on all processes of a session together.

Supports version 1 (one tree per controller) and version 2 (one tree), below the broker's own group only. Where none can
be created, `CgroupRoot.problem` says why, and memory and processes are limited per process and user. Linux,
Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from replwire.limits import MIB
from replwire.policy import SandboxLimits

CONTROLLERS = ("memory", "pids", "cpu")
_NONE = "no cgroup controllers are mounted"
_PERIOD_US = 100_000
_DYING_S = 0.002
_MAX_GROUPS = 10_000  # groups per process: a worker has one, tests have more
_HUGE_PAGE = 2 * MIB  # the size of the last failed allocation
_OF_BWRAP = 2  # its two processes are counted as well
_OPTIONAL = ("memory.memsw.limit_in_bytes", "memory.swap.max")  # not in every kernel
_NAME = re.compile(r"replctl-(\d+)-\d+")


@dataclass(frozen=True, slots=True)
class CgroupRoot:
    """Directories in which groups can be created, by controller. In version 2 all are the same."""

    version: int = 0
    directories: dict[str, str] = field(default_factory=dict)
    problem: str | None = _NONE


def find_cgroup_root(proc: Path = Path("/proc/self")) -> CgroupRoot:
    """Find the broker's own groups in which it may create others. Call it once, in the broker: workers inherit."""
    own = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
    mounts = _parse_mounts((proc / "mountinfo").read_text().splitlines())
    first: dict[str, str] = {}
    for _, names, path in own:
        for name in filter(None, names.split(",")):
            if name in CONTROLLERS and name in mounts:
                first[name] = _mounted_path(mounts[name], path)
    usable = {name: directory for name, directory in first.items() if _is_writable(directory)}
    if usable:
        return CgroupRoot(1, usable, None)
    for _, names, path in own:
        if names == "" and "" in mounts:
            second = _find_v2(Path(_mounted_path(mounts[""], path)))
            if second.directories or not first:
                return second
    return CgroupRoot(problem=f"{next(iter(first.values()))} is not writable" if first else _NONE)


def find_memory_group(proc: Path = Path("/proc/self")) -> tuple[Path, int] | None:
    """Find the group that counts this process's memory, writable or not, and its version."""
    mounts = _parse_mounts((proc / "mountinfo").read_text().splitlines())
    own = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
    for _, names, path in own:
        if "memory" in names.split(",") and "memory" in mounts:
            return Path(_mounted_path(mounts["memory"], path)), 1
    for _, names, path in own:
        if names == "" and "" in mounts:
            return Path(_mounted_path(mounts[""], path)), 2
    return None


Mount = tuple[str, str]  # root within the hierarchy, and mount point


def _parse_mounts(lines: Iterable[str]) -> dict[str, Mount]:
    """Return mounts by controller, "" for version 2."""
    found: dict[str, Mount] = {}
    for line in lines:
        head, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        root, place = head.split(" ")[3:5]
        if kind == "cgroup2":
            found[""] = root, place
        elif kind == "cgroup":
            found.update(dict.fromkeys(options.split(","), (root, place)))
    return found


def _mounted_path(mount: Mount, path: str) -> str:
    """Return a group's directory, as seen through a mount that may show only a part of the tree."""
    root, place = mount
    return os.path.normpath(f"{place}/{path[len(root) :] if root != '/' and path.startswith(root) else path}")


def _is_writable(directory: str) -> bool:
    return os.access(directory, os.W_OK) and os.access(f"{directory}/cgroup.procs", os.W_OK)


def _find_v2(directory: Path) -> CgroupRoot:
    """Prepare a version 2 group: processes must be in leaves, so the broker moves to a leaf if it is alone."""
    try:
        offered = set((directory / "cgroup.controllers").read_text().split()) & set(CONTROLLERS)
        if not offered:
            return CgroupRoot(problem=f"{directory} has no memory or pids controller")
        if not _is_writable(str(directory)):
            return CgroupRoot(problem=f"{directory} is not writable")
        if not offered <= set((directory / "cgroup.subtree_control").read_text().split()):
            _move_to_leaf(directory)
            (directory / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(offered)))
    except OSError as error:
        return CgroupRoot(problem=f"{directory}: {error.strerror}")
    return CgroupRoot(2, dict.fromkeys(sorted(offered), str(directory)), None)


def _move_to_leaf(directory: Path) -> None:
    pids = [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
    if pids != [os.getpid()]:
        raise OSError(0, "it contains processes other than the broker")
    leaf = directory / "replctl-broker"
    leaf.mkdir(exist_ok=True)
    (leaf / "cgroup.procs").write_text(str(pids[0]))


class Cgroup:
    """Control group of one session. The worker calls `create` and `remove`, its forked child calls `join`."""

    def __init__(self, home: CgroupRoot, usage: SandboxLimits) -> None:
        self._home = home
        self._usage = usage
        self._name = ""
        self._kills = 0  # that were told

    @property
    def directories(self) -> dict[str, Path]:
        """Directory of this group by controller."""
        return (
            {name: Path(directory, self._name) for name, directory in self._home.directories.items()}
            if self._name
            else {}
        )

    def create(self) -> None:
        """Create the group and set its limits.

        Raises:
            OSError: a limit cannot be set
        """
        for number in range(_MAX_GROUPS):
            self._name = f"replctl-{os.getpid()}-{number}"  # `remove_orphans` finds dead workers by the pid
            if not any(directory.exists() for directory in self.directories.values()):
                break
        for name, directory in self.directories.items():
            directory.mkdir(exist_ok=True)  # in version 2 the directories are the same
            for file, value in self._settings(name):
                if file not in _OPTIONAL or (directory / file).exists():
                    (directory / file).write_text(value)

    def _settings(self, controller: str) -> list[tuple[str, str]]:
        usage, first = self._usage, self._home.version == 1
        quota = usage.cpu_percent * _PERIOD_US // 100
        if controller == "memory" and first:
            most = str(usage.memory_bytes)
            return [("memory.limit_in_bytes", most), ("memory.memsw.limit_in_bytes", most)]
        if controller == "memory":
            # Not oom.group: a session whose interpreter is killed goes on from a checkpoint.
            return [("memory.max", str(usage.memory_bytes)), ("memory.swap.max", "0")]
        if controller == "pids":
            return [("pids.max", str(usage.pids + _OF_BWRAP))]
        if first:
            return [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]
        return [("cpu.max", f"{quota} {_PERIOD_US}")]

    def join(self) -> None:
        """Move the calling process into the group.

        Raises:
            OSError: the group cannot be joined
        """
        for directory in set(self.directories.values()):
            with open(directory / "cgroup.procs", "w") as file:
                file.write("0")

    def controllers_of(self, pid: int) -> set[str]:
        """Return the controllers in whose group a process is."""
        found = set()
        for name, directory in self.directories.items():
            if str(pid) in (directory / "cgroup.procs").read_text().split():
                found.add(name)
        return found

    def was_oom_killed(self) -> bool:
        """Return whether the kernel killed a process for lack of memory, at any limit, since the last call."""
        file = "memory.oom_control" if self._home.version == 1 else "memory.events"
        reported, self._kills = self._kills, self._read_counter(file, "oom_kill")
        return self._kills > reported

    def has_hit_own_limit(self) -> bool:
        """Return whether the group's own memory limit was reached, rather than an outer group's or the machine's."""
        if self._home.version == 1:  # kernels no longer maintain its failcnt
            return self._read_counter("memory.max_usage_in_bytes") >= self._usage.memory_bytes - _HUGE_PAGE
        return self._read_counter("memory.events", "oom") > 0

    def _read_counter(self, file: str, word: str | None = None) -> int:
        """Read a counter of the memory controller, after `word` if the file has several; 0 if it is missing."""
        directory = self.directories.get("memory")
        if directory is None:
            return 0
        try:
            words = (directory / file).read_text().split()
            return int(words[words.index(word) + 1] if word else words[0])
        except (OSError, ValueError, IndexError):
            return 0

    def remove(self, seconds: float = 0.0) -> bool:
        """Remove the group. Return False if a process is still in it after `seconds`."""
        end = time.monotonic() + seconds
        while not _remove(set(self.directories.values())):
            if time.monotonic() >= end:
                return False
            time.sleep(_DYING_S)
        return True


def remove_orphans(home: CgroupRoot) -> int:
    """Remove groups of dead workers and return how many are left. A killed worker leaves an empty group."""
    left = 0
    for directory in set(home.directories.values()):
        for path in Path(directory).glob("replctl-*-*"):
            match = _NAME.fullmatch(path.name)
            if match and not os.path.exists(f"/proc/{match[1]}") and not _remove({path}):
                left += 1
    return left


def _remove(directories: Iterable[Path]) -> bool:
    removed = True
    for directory in directories:
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            removed = False
    return removed

"""Memory of a tree of processes, as the kernel tells it process by process: where no control group counts their sum.

The cheap figures of a process, RssAnon, RssShmem and VmSwap of `/proc/PID/status` (4 us), count pages that processes
share once for each of them. The exact ones, Pss of `smaps_rollup`, walk its page tables (27 ms a gigabyte), so they are
asked for only where the cheap ones would be a reason to act. Files in memory need not be mapped to take room, so they
are asked for as well: what lies in a tmpfs, and what descriptors hold that no file system shows (memfd_create).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from replwire.limits import KIB

_STATUS_BYTES = 8192
_BLOCK = 512  # of st_blocks
_TMPFS = ("/tmp", "/dev/shm")
_MAX_PROCESSES = 10_000  # a tree that grows while it is walked must not be walked for ever


class ProcessMemory(NamedTuple):
    """Bytes of one process, or of several."""

    own: int
    shared: int  # with other processes, by files in memory

    def __bool__(self) -> bool:
        return self.own + self.shared > 0


class ProcessTree:
    """`root` and all below it."""

    def __init__(self, root: int, proc: str = "/proc") -> None:
        self._root = root
        self._proc = proc
        fd = os.memfd_create("replctl", os.MFD_CLOEXEC)
        self._memfds = os.fstat(fd).st_dev
        os.close(fd)

    def memory(self, exact_above: int | None = None, sandboxed_pid: int | None = None) -> int:
        """Bytes that it uses; where the cheap sum is more than `doubt`, the exact one. `inside` is a process whose
        /tmp and /dev/shm are this tree's own, in memory."""
        pids = list(self._pids())
        files = self._memfd_bytes(pids)
        if sandboxed_pid is not None:
            files += sum(_used_bytes(f"{self._proc}/{sandboxed_pid}/root{place}") for place in _TMPFS)
        held = [self._approximate(pid) for pid in pids]
        total = _sum(held, files)
        if exact_above is None or total <= exact_above or len(pids) == 1:
            return total
        return _sum([self._exact(pid) or cheap for pid, cheap in zip(pids, held, strict=True)], files)

    def _pids(self) -> Iterator[int]:
        waiting = [self._root]
        for _ in range(_MAX_PROCESSES):
            if not waiting:
                return
            pid = waiting.pop()
            yield pid
            tasks = f"{self._proc}/{pid}/task"
            for thread in _names(tasks):  # each has the children that it started
                waiting += map(int, _read(f"{tasks}/{thread}/children").split())

    def _approximate(self, pid: int) -> ProcessMemory:
        found = _lines(f"{self._proc}/{pid}/status")
        return ProcessMemory(found.get(b"RssAnon", 0) + found.get(b"VmSwap", 0), found.get(b"RssShmem", 0))

    def _exact(self, pid: int) -> ProcessMemory:
        found = _lines(f"{self._proc}/{pid}/smaps_rollup")
        return ProcessMemory(found.get(b"Pss_Anon", 0) + found.get(b"SwapPss", 0), found.get(b"Pss_Shmem", 0))

    def _memfd_bytes(self, pids: Iterable[int]) -> int:
        sizes: dict[int, int] = {}
        for pid in pids:
            for name in _names(f"{self._proc}/{pid}/fd"):
                try:
                    found = os.stat(f"{self._proc}/{pid}/fd/{name}")
                except OSError:
                    continue
                if found.st_dev == self._memfds:
                    sizes[found.st_ino] = found.st_blocks * _BLOCK
        return sum(sizes.values())


def _sum(held: Iterable[ProcessMemory], files: int) -> int:
    """A file that is mapped is told of twice, by its file system and by its processes."""
    own, shared = map(sum, zip(*held, strict=True))
    return int(own + max(shared, files))


def _used_bytes(place: str) -> int:
    try:
        found = os.statvfs(place)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # its process has ended, or may not be looked at
        return []


def _lines(path: str) -> dict[bytes, int]:
    """The lines in kB, in bytes; none for a process that has ended, or may not be looked at."""
    rows = (line.partition(b":") for line in _read(path).splitlines() if line.endswith(b" kB"))
    return {name: int(value.split()[0]) * KIB for name, _, value in rows}


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _STATUS_BYTES)
    except OSError:  # it has ended since
        return b""
    finally:
        os.close(fd)

"""Memory of a process tree, for machines without a memory control group.

The cheap metrics of a process, RssAnon, RssShmem and VmSwap of `/proc/PID/status` (4 us), count shared pages once per
process. The exact ones, Pss of `smaps_rollup`, walk its page tables (27 ms per gigabyte), so they are read only if the
cheap ones would require action. Files in memory need not be mapped to use memory, so tmpfs contents and memfds are
counted as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from replwire.limits import KIB

_STATUS_BYTES = 8192
_BLOCK = 512  # of st_blocks
_TMPFS = ("/tmp", "/dev/shm")
_MAX_PROCESSES = 10_000  # bounds the walk of a growing tree


class ProcessMemory(NamedTuple):
    """Bytes of one or several processes."""

    own: int
    shared: int  # with other processes, through files in memory

    def __bool__(self) -> bool:
        return self.own + self.shared > 0


class ProcessTree:
    """`root` and its descendants."""

    def __init__(self, root: int, proc: str = "/proc") -> None:
        self._root = root
        self._proc = proc
        fd = os.memfd_create("replctl", os.MFD_CLOEXEC)
        self._memfds = os.fstat(fd).st_dev
        os.close(fd)

    def memory(self, exact_above: int | None = None, sandboxed_pid: int | None = None) -> int:
        """Return the bytes used by the tree.

        Args:
            exact_above: if the cheap sum is larger, or checkpoints wait, return the exact one
            sandboxed_pid: process whose /tmp and /dev/shm belong to this tree and are in memory
        """
        pids = list(self._pids())
        files = self._memfd_bytes(pids)
        if sandboxed_pid is not None:
            files += sum(_used_bytes(f"{self._proc}/{sandboxed_pid}/root{place}") for place in _TMPFS)
        held = [self._approximate(pid) for pid in pids]
        total = _sum(held, files)
        if len(pids) == 1 or (not self._has_copies(sandboxed_pid) and (exact_above is None or total <= exact_above)):
            return total
        return _sum([self._exact(pid) or cheap for pid, cheap in zip(pids, held, strict=True)], files)

    def _has_copies(self, sandboxed_pid: int | None) -> bool:
        """Return whether checkpoints wait beside the interpreter: they share nearly all of its memory."""
        if sandboxed_pid is None:
            return False
        status = _read(f"{self._proc}/{sandboxed_pid}/status").partition(b"\nPPid:\t")[2]
        holder = status.partition(b"\n")[0].decode()
        return len(_read(f"{self._proc}/{holder}/task/{holder}/children").split()) > 1

    def _pids(self) -> Iterator[int]:
        waiting = [self._root]
        for _ in range(_MAX_PROCESSES):
            if not waiting:
                return
            pid = waiting.pop()
            yield pid
            tasks = f"{self._proc}/{pid}/task"
            for thread in _names(tasks):  # each thread lists its own children
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
    """Add up memory; mapped files are counted by their file system and their processes, so take the larger."""
    own, shared = map(sum, zip(*held, strict=True))
    return int(own + max(shared, files))


def _used_bytes(place: str) -> int:
    try:
        found = os.statvfs(place)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:  # the process has exited, or is not readable
        return []


def _lines(path: str) -> dict[bytes, int]:
    """Return lines in kB as bytes; none for a process that has exited or is not readable."""
    rows = (line.partition(b":") for line in _read(path).splitlines() if line.endswith(b" kB"))
    return {name: int(value.split()[0]) * KIB for name, _, value in rows}


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _STATUS_BYTES)
    except OSError:  # it has exited since
        return b""
    finally:
        os.close(fd)

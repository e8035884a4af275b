"""Memory that is available to the broker's sessions: the machine's, or its control group's if that is less."""

from __future__ import annotations

from pathlib import Path

from replbroker.core.limits.memory_totals import AvailableMemory
from replwire.limits import KIB
from replworker.sandbox import group_memory
from replworker.sandbox.cgroup import find_memory_group


class MachineMemoryReader:
    """Reader of the available memory, from two or three small files.

    Args:
        proc: Where procfs is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._meminfo = proc / "meminfo"
        found = find_memory_group(proc / "self")
        self._version = 0 if found is None else found[1]
        self._groups = [] if found is None else list(group_memory.limited_ancestors(*found))

    def read(self) -> AvailableMemory:
        """Return the memory available now.

        Raises:
            OSError: procfs cannot be read.
        """
        lines = dict(line.split(":", 1) for line in self._meminfo.read_text().splitlines())
        total, left = (int(lines[name].split()[0]) * KIB for name in ("MemTotal", "MemAvailable"))
        for group in self._groups:
            bound = group_memory.limit_bytes(group, self._version)
            if bound is not None:
                total = min(total, bound)
                left = min(left, max(0, bound - group_memory.used_bytes(group, self._version)))
        return AvailableMemory(total, left)

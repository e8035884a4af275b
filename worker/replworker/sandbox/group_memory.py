"""Memory of a control group, for both versions.

Linux, Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst. The page cache is not counted: the kernel
reclaims it before it refuses an allocation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_UNLIMITED = 1 << 60  # version 1 writes "no limit" as the largest number of pages


class _MemoryFiles(NamedTuple):
    used: str
    most: str
    cache: str  # in memory.stat; includes shmem, which cannot be reclaimed
    shmem: str


_FILES = {
    1: _MemoryFiles("memory.usage_in_bytes", "memory.limit_in_bytes", "total_cache", "total_shmem"),
    2: _MemoryFiles("memory.current", "memory.max", "file", "shmem"),
}


def used_bytes(directory: Path, version: int) -> int:
    """Return the bytes used by the group's processes; 0 if the group is gone."""
    files = _FILES[version]
    try:
        lines = (directory / "memory.stat").read_text().splitlines()
        held = int((directory / files.used).read_text())
    except OSError:
        return 0
    stat = dict(line.split(" ", 1) for line in lines)
    cache = int(stat.get(files.cache, 0)) - int(stat.get(files.shmem, 0))
    return max(0, held - cache)


def limit_bytes(directory: Path, version: int) -> int | None:
    """Return the group's limit in bytes, or None.

    Raises:
        OSError: the file is missing
        ValueError: the file has no number
    """
    text = (directory / _FILES[version].most).read_text().strip()
    return None if text == "max" or int(text) >= _UNLIMITED else int(text)


def limited_ancestors(place: Path, version: int) -> Iterator[Path]:
    """Yield this group and its ancestors that have a limit."""
    for directory in (place, *place.parents):
        try:
            bound = limit_bytes(directory, version)
        except (OSError, ValueError):
            if not (directory / "cgroup.procs").exists():
                return  # above the hierarchy
            continue  # the version 2 root has no such file
        if bound is not None:
            yield directory

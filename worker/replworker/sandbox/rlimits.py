"""Limits of a single process, set inside the sandbox and inherited by all that it starts.

RLIMIT_AS is of no use: node reserves gigabytes of addresses that it never touches. RLIMIT_DATA counts what can be
written, so python meets a MemoryError, and the session lives, before the group's limit would have it killed.
"""

from __future__ import annotations

import resource

from replwire.policy import SandboxLimits

Limit = tuple[int, int]


def limits(usage: SandboxLimits, runtime: str, *, grouped: bool) -> list[Limit]:
    """RLIMIT_* and value. `grouped`: a memory cgroup holds the total."""
    found = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, usage.open_files),
        (resource.RLIMIT_FSIZE, usage.file_bytes),
        (resource.RLIMIT_NPROC, usage.pids),
    ]
    data = _data(usage, runtime, grouped)
    return found if data is None else [*found, (resource.RLIMIT_DATA, data)]


def _data(usage: SandboxLimits, runtime: str, grouped: bool) -> int | None:
    """Python is let raise before its session is ended: the rest is for code, page tables and /tmp. Node aborts at it,
    where the end by the sum at least names its cause: there it is for want of a group alone."""
    if runtime == "python":
        return usage.memory_bytes * 7 // 8
    return None if grouped else usage.memory_bytes

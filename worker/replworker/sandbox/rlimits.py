"""Per-process limits, set inside the sandbox and inherited.

RLIMIT_AS is unusable: Node reserves gigabytes of addresses it never touches. RLIMIT_DATA counts writable memory, so
Python raises MemoryError and the session survives, before the group's limit would kill it.
"""

from __future__ import annotations

import resource

from replwire.policy import SandboxLimits

Limit = tuple[int, int]


def limits(usage: SandboxLimits, runtime: str, *, grouped: bool) -> list[Limit]:
    """Return RLIMIT_* numbers and values. `grouped`: a memory cgroup limits the total."""
    found = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, usage.open_files),
        (resource.RLIMIT_FSIZE, usage.file_bytes),
        (resource.RLIMIT_NPROC, usage.pids),
    ]
    data = _data(usage, runtime, grouped)
    return found if data is None else [*found, (resource.RLIMIT_DATA, data)]


def _data(usage: SandboxLimits, runtime: str, grouped: bool) -> int | None:
    """Return the RLIMIT_DATA of a runtime, or None.

    Python raises MemoryError before its session is killed; the rest is for code, page tables and /tmp. Node aborts at
    this limit, so it gets one only without a group, whose kill at least reports its cause.
    """
    if runtime == "python":
        return usage.memory_bytes * 7 // 8
    return None if grouped else usage.memory_bytes

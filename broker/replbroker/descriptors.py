"""The broker's own limit on open files: as high as it may be, and what fits below it."""

from __future__ import annotations

import os
import resource

from replbroker.endpoints import StartError
from replwire.descriptors import clamp_limits
from replwire.limits import Limits

_RESERVE = 40  # for what a start of a worker, a log or a transcript opens


def raise_open_files_limit() -> tuple[int, int]:
    """Raise it as far as it goes without rights; what it was, for processes of sessions, and what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def fit_limits(limits: Limits, warm_workers: int, descriptors: int) -> tuple[Limits, str | None]:
    """The limits that can be kept with so many, and a warning when they are not those that were set. Raises
    StartError."""
    found = clamp_limits(limits, warm_workers, descriptors)
    if found == limits:
        return limits, None
    if not found.max_sessions:
        raise StartError(f"the limit of {descriptors} open files is too low for a session: ulimit -n 1024 is enough")
    return found, (
        f"the limit of {descriptors} open files is enough for {found.max_sessions} sessions and "
        f"{found.max_connections} connections, not for {limits.max_sessions} and {limits.max_connections}: raise it "
        "(ulimit -n, LimitNOFILE=)"
    )


def is_near_limit(descriptors: int) -> bool:
    """Whether so few are left that nothing should be begun that needs some."""
    try:
        return len(os.listdir("/proc/self/fd")) + _RESERVE > descriptors
    except OSError:
        return True

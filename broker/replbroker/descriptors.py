"""The broker's own limit of open files: raised as far as it goes, and the limits that fit below it."""

from __future__ import annotations

import os
import resource

from replbroker.endpoints import StartError
from replwire.descriptors import clamp_limits
from replwire.limits import Limits

_RESERVE = 40  # for what the start of a worker, a log or a transcript opens


def raise_open_files_limit() -> tuple[int, int]:
    """Raise the soft limit to the hard one.

    Returns:
        The soft limit as it was, for processes of sessions, and as it is now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def restore_open_files_limit(soft: int) -> None:
    """Set the soft limit back to what it was: the process may begin again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def fit_limits(limits: Limits, warm_workers: int, descriptors: int) -> tuple[Limits, str | None]:
    """Lower limits that so few descriptors are not enough for.

    Args:
        limits: The limits of the settings.
        warm_workers: Workers that are kept ready.
        descriptors: How many files the broker may have open.

    Returns:
        Limits that can be kept, and a warning when they are not those of the settings.

    Raises:
        StartError: There are too few descriptors for a single session.
    """
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
    """Return whether too few descriptors are left to begin something that needs some."""
    try:
        return len(os.listdir("/proc/self/fd")) + _RESERVE > descriptors
    except OSError:
        return True

"""Orphan processes of dead workers: found as children of the broker, killed and reaped.

Every worker is a subreaper, and so is the broker: while a worker lives, processes that detach themselves from its
session become the worker's children; when it dies, they become the broker's. So every child that the broker did not
start itself is an orphan, and no marker in its environment is needed.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Make this process inherit the orphans among its descendants.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children() -> set[int]:
    """Return the pids of all children of this process, including those that its threads started."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                found.update(int(pid) for pid in file.read().split())
        except FileNotFoundError:  # the thread has just ended
            continue
    return found


def reap_orphans(expected: set[int]) -> int:
    """Kill and reap orphans.

    Args:
        expected: Pids of children that are no orphans.

    Returns:
        How many orphans are still dying; call again on SIGCHLD until it is 0.
    """
    left = 0
    for pid in children() - expected:
        try:
            os.kill(pid, signal.SIGKILL)
            reaped, _ = os.waitpid(pid, os.WNOHANG)
        except (ProcessLookupError, ChildProcessError):
            continue
        left += not reaped
    return left

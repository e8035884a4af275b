"""What sessions leave behind when their worker dies: found as our own children, killed and reaped.

Every worker is a subreaper, and so is the broker: while a worker lives, processes that detach themselves from
its session become the worker's children; when it dies they become ours. So each child of the broker that it
did not start itself is a stray, by construction, and no marker in its environment is needed.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """From now on orphans below this process come to it. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children() -> set[int]:
    """Pids of all children of this process, those that its threads started included."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                found.update(int(pid) for pid in file.read().split())
        except FileNotFoundError:  # a thread that has just ended
            continue
    return found


def reap_orphans(expected: set[int]) -> int:
    """Kill and reap strays. Returns how many are still dying: call again on SIGCHLD until it is 0."""
    left = 0
    for pid in children() - expected:
        try:
            os.kill(pid, signal.SIGKILL)
            reaped, _ = os.waitpid(pid, os.WNOHANG)
        except (ProcessLookupError, ChildProcessError):
            continue
        left += not reaped
    return left

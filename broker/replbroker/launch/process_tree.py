"""The end of a process with all its descendants, where the broker is not their parent."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

_PAUSE_S = 0.001
_TIMEOUT_S = 2.0


def kill_tree(pid: int, pidfd: int) -> None:
    """Kill a worker and its descendants, detached ones as well.

    A worker is a subreaper: while it lives, whatever its session has started is below it. So it is stopped first, and
    killed last.

    Args:
        pid: Pid of the worker.
        pidfd: Its pidfd.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        while (children := _live_descendants(pid)) and time.monotonic() < deadline:
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(_PAUSE_S)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _live_descendants(pid: int) -> list[int]:
    """Return the pids of all descendants that are no zombies."""
    found, pending = list[int](), [pid]
    while pending:
        children = _children(pending.pop())
        pending += children
        found += children
    return [each for each in found if not _is_zombie(each)]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"ZX"
    except OSError:
        return True

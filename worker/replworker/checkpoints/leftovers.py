"""Processes that an interpreter leaves in its sandbox when another takes its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress

from replworker.runtimes.interpreter_process import read_kernel_session

_MAX_PROCESSES = 10_000
_COMMAND_BYTES = 60


def kill_leftovers(wrapper: int, keep: Collection[int], kernel_session: int | None = None) -> list[str]:
    """Kill everything in a sandbox but its first process and `keep`; return command lines of what was killed.

    `wrapper` is the process around the sandbox, whose only child is the first inside. A session that forks faster than
    this looks keeps processes, in its own sandbox and limits. With `kernel_session`, only what is in that is killed.
    """
    found = {
        pid: command
        for pid, command in _inside(wrapper).items()
        if pid not in keep and kernel_session in (None, read_kernel_session(pid))
    }
    handles = {}
    for pid in found:
        with suppress(ProcessLookupError):
            handles[pid] = os.pidfd_open(pid)
    still = _inside(wrapper)  # a pid that is inside again or still: its descriptor is of a process inside
    for pid, handle in handles.items():
        if pid in still:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    return [command for pid, command in found.items() if command and pid in still]


def pids_in_session(wrapper: int, kernel_session: int) -> list[int]:
    """Return the processes of a sandbox that are in a kernel session."""
    return [pid for pid in _inside(wrapper) if read_kernel_session(pid) == kernel_session]


def _inside(wrapper: int) -> dict[int, str]:
    """Return pids below the sandbox's first process with their commands; zombies have none.

    The children of a process that ends meanwhile become those of the first, so that is asked until nothing is new.
    """
    found: dict[int, str] = {}
    while waiting := [pid for holder in _children(wrapper) for pid in _children(holder) if pid not in found]:
        while waiting and len(found) < _MAX_PROCESSES:
            pid = waiting.pop()
            found[pid] = _command(pid)
            waiting += [child for child in _children(pid) if child not in found]
        if len(found) >= _MAX_PROCESSES:
            break
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # each thread lists its own
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:  # it has ended since
        pass
    return found


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(_COMMAND_BYTES).rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""

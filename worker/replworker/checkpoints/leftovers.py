"""Processes that an interpreter leaves in its sandbox when another takes its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection

from replworker.runtimes.interpreter_process import read_kernel_session, read_parent

_MAX_PROCESSES = 10_000
_MAX_LOOKS = 5  # the kernel's list of children may lack one while another one ends (proc(5)): one look is not enough
_MAX_DEPTH = 100  # of processes below each other
_COMMAND_BYTES = 60


def kill_leftovers(wrapper: int, keep: Collection[int], kernel_session: int | None = None) -> list[str]:
    """Kill everything in a sandbox but its first process and `keep`; return command lines of what was killed.

    `wrapper` is the process around the sandbox, whose only child is the first inside. A session that forks faster than
    this looks keeps processes, in its own sandbox and limits. With `kernel_session`, only what is in that is killed.
    """
    killed: dict[int, str] = {}
    for look in range(_MAX_LOOKS):
        found = {
            pid: command
            for pid, command in _inside(wrapper).items()
            if pid not in keep and pid not in killed and kernel_session in (None, read_kernel_session(pid))
        }
        killed |= {pid: command for pid, command in found.items() if _kill_inside(pid, wrapper)}
        if not found and look > 0:
            break
    return [command for command in killed.values() if command]


def _kill_inside(pid: int, wrapper: int) -> bool:
    """Kill a process if it is still one of the sandbox, and not another with its pid; return whether it was."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not _is_below(pid, wrapper):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def _is_below(pid: int, ancestor: int) -> bool:
    """Return whether a process descends from another; a parent that ends meanwhile makes way for its own."""
    at = pid
    for _ in range(_MAX_DEPTH):
        parent = read_parent(at)
        if parent == ancestor:
            return True
        if parent is None:
            if at == pid:
                return False
            at = pid
        else:
            at = parent
    return False


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

"""Durable ids of workers: enough to find a worker again from another broker, and never to take another for it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_START_FIELD = 19  # of /proc/PID/stat behind the name: clock ticks from boot to start, proc_pid_stat(5)


class WorkerHandle(msgspec.Struct, frozen=True, omit_defaults=True):
    """Durable id of a worker, with what its launcher has to know of it.

    Attributes:
        pid: Its pid.
        start: When it was started, in clock ticks since the machine's.
        boot: Id of the machine's start.
        slot: Number of its sandbox's host user; None without a sandbox.
        environment: The Python environment that it uses.
        cgroups: Directories in which its control group is, by controller.
        cgroup_version: Version of these control groups.
        egress: Whether it needs the egress proxy.
    """

    pid: int
    start: int
    boot: str
    slot: int | None = None
    environment: str | None = None
    cgroups: dict[str, str] = {}
    cgroup_version: int = 0
    egress: bool = False

    def open(self) -> int | None:
        """Return a pidfd of the worker, or None if it is dead."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            return None
        # The pidfd comes first: a pid that is used again after this look no longer matters.
        if self.boot == boot_id() and read_start(self.pid) == self.start:
            return pidfd
        os.close(pidfd)
        return None

    def encode(self) -> str:
        """Return the text that `decode_handle` reads."""
        return msgspec.json.encode(self).decode()


_decode = msgspec.json.Decoder(WorkerHandle).decode


def decode_handle(text: str) -> WorkerHandle | None:
    """Return a handle; None if another version has written it in a way that cannot be read."""
    try:
        return _decode(text)
    except msgspec.MsgspecError:
        return None


def boot_id() -> str:
    """Return the id of the machine's start."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_start(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the machine's start; None if it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[_START_FIELD])

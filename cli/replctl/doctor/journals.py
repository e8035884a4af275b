"""Journals of brokers that have ended: which of their sessions wait for another broker, and which are lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

_CHECKSUM_CHARS = 9  # before each line; older lists of sessions have none
_START_FIELD = 19  # of /proc/PID/stat behind the name, proc_pid_stat(5)


class _JournalLine(msgspec.Struct):
    """A line of a journal, reduced to the fields needed here; the first one has the broker's pid."""

    type: str = "session"
    pid: int = 0
    id: str = ""
    name: str | None = None
    open: bool = False
    details: dict[str, msgspec.Raw] = {}
    worker: int = 0
    handle: str = ""


class _WorkerHandle(msgspec.Struct):
    """A worker's durable id."""

    pid: int
    start: int
    boot: str


class LeftSessions(NamedTuple):
    """Sessions of brokers that have ended.

    Attributes:
        waiting: Those whose workers wait for another broker.
        without_worker: Those whose workers are dead.
        pids: The workers that wait.
    """

    waiting: list[str]
    without_worker: list[str]
    pids: list[int]


def find_left_sessions(state_dir: str) -> LeftSessions:
    """Return the sessions that were open when their brokers ended."""
    left = LeftSessions([], [], [])
    for path in sorted(Path(state_dir).glob("sessions-*.ndjson")):
        try:
            head, *lines = _read(path)
        except (OSError, ValueError):
            continue
        if is_running(head.pid):
            continue
        sessions = {each.id: each for each in lines if each.type == "session"}
        handles = {each.worker: each.handle for each in lines if each.type == "worker"}
        alive = {worker: pid for worker, handle in handles.items() if (pid := _live_pid(handle)) is not None}
        for each in sessions.values():
            if each.open and bytes(each.details.get("ephemeral", b"")) != b"true":
                worker = int(bytes(each.details.get("worker", b"0")))
                (left.waiting if worker in alive else left.without_worker).append(each.name or each.id)
                left.pids.extend([alive[worker]] if worker in alive else [])
    return left


def _read(path: Path) -> Iterator[_JournalLine]:
    """Yield the lines of a journal; damaged ones are left out."""
    for line in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line if line.startswith(b"{") else line[_CHECKSUM_CHARS:], type=_JournalLine)
        except msgspec.MsgspecError:
            continue


def _live_pid(handle: str) -> int | None:
    """Return the pid of a worker, None if it is dead or its pid was used again."""
    try:
        known = msgspec.json.decode(handle, type=_WorkerHandle)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{known.pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, msgspec.MsgspecError):
        return None
    is_same = boot == known.boot and int(fields[_START_FIELD]) == known.start
    return known.pid if is_same and fields[0] not in "ZX" else None


def is_running(pid: int) -> bool:
    """Return True if the process exists; zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

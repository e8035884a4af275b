"""Processes that a measurement starts, looks into and always ends, and the deadline over all of it."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
READY_S = 30.0
END_S = 10.0
END_BROKER = signal.SIGINT  # SIGTERM keeps the sessions, whose workers would wait for another broker for minutes
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class DeadlineExceeded(Exception):
    """A measurement took longer than it may."""


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Raise Deadline out of whatever waits when the time is over. For the main thread; not to be nested."""

    def over(_: int, __: FrameType | None) -> None:
        raise DeadlineExceeded(f"{what}: not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Make a directory for sockets and state, private and with a short path: ipc addresses are bounded."""
    path = Path(tempfile.mkdtemp(prefix="replb-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def start(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    cwd: Path = ROOT,
    pass_fds: Sequence[int] = (),
    end_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[str]:
    """Start a child with pipes to its stdin and stdout, which ends when we do. Its stderr goes to `log`, or to ours."""
    with open(log or os.devnull, "a") as stderr:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr if log else None,
            text=True,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            preexec_fn=partial(_libc.prctl, _PR_SET_PDEATHSIG, end_signal, 0, 0, 0),
            pass_fds=pass_fds,
        )


def start_module(name: str, *args: str) -> subprocess.Popen[str]:
    """Start a module of this package as a child."""
    return start([sys.executable, "-m", f"bench.{name}", *args])


def read_line(process: subprocess.Popen[str], seconds: float = READY_S) -> str:
    """Return the next line of its stdout. Raises Deadline or EOFError."""
    stream: IO[str] | None = process.stdout
    assert stream is not None
    if not select.select([stream], [], [], seconds)[0]:
        raise DeadlineExceeded(f"{process.args!r}: no word in {seconds:g} s")
    line = stream.readline()
    if not line:
        raise EOFError(f"{process.args!r} ended")
    return line.strip()


def send_line(process: subprocess.Popen[str], line: str = "") -> None:
    """Write a line to its stdin."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def stop(process: subprocess.Popen[str], end_signal: signal.Signals = signal.SIGTERM) -> None:
    """Ask it to end, then make it."""
    process.send_signal(end_signal)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # unsent text for one that has gone
                pass


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in _tasks(parent):
            try:
                children = Path(f"/proc/{parent}/task/{task}/children").read_text()
            except OSError:
                continue
            found += map(int, children.split())
    return found


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


@contextmanager
def on_one_core(pids: Iterable[int]) -> Iterator[None]:
    """Every thread of these processes and of all below them, on one and the same core."""
    everywhere = os.sched_getaffinity(0)
    roots = list(pids)

    def put(cores: set[int]) -> None:
        for root in roots:
            for pid in process_tree(root):
                for task in _tasks(pid):
                    try:
                        os.sched_setaffinity(task, cores)
                    except ProcessLookupError:
                        continue

    put({max(everywhere)})
    try:
        yield
    finally:
        put(everywhere)


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processor_s(pid: int) -> float:
    """Processor time that it used until now, in steps of the kernel's clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    """Return its memory in MB, shared pages counted in proportion."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ValueError("no Pss line")


def settle(seconds: float = 0.5) -> None:
    """Let what just started come to rest."""
    time.sleep(seconds)

"""Causes of a sandboxed interpreter's end: the real one is reported, not the apparent one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from replwire.policy import Policy, SandboxLimits
from replworker.sandbox import cgroup
from replworker.sandbox.machine import Machine
from replworker.sandbox.report import SandboxReport
from sandbox_kit import SandboxedPython

Start = Callable[..., SandboxedPython]


def test_a_sandbox_that_is_killed_is_not_told_as_its_interpreter(live: Start) -> None:
    session = live()
    os.kill(session.child.outer_pid, signal.SIGKILL)
    assert session.death() == "the sandbox around the interpreter (bwrap) was killed by SIGKILL (signal 9)"


@pytest.mark.needs_root("an ordinary user makes no group around another")
def test_a_limit_of_memory_around_the_sessions_own_is_not_told_as_its_own(
    machine: Machine, report: SandboxReport, grouped: None
) -> None:
    del report, grouped
    home = machine.cgroups
    outer = Path(home.directories["memory"], f"outer-{os.getpid()}")
    outer.mkdir()
    try:
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"):
            if (outer / name).exists():
                (outer / name).write_text(str(128 << 20))
        around = cgroup.CgroupRoot(home.version, {"memory": str(outer)}, None)
        session = SandboxedPython(
            Policy(limits=SandboxLimits(memory_bytes=512 << 20)), replace(machine, cgroups=around)
        )
        try:
            session.assign()
            session.start("import mmap\nheld = mmap.mmap(-1, 400 << 20)\nwhile True: held.write(bytes(1 << 20))")
            assert session.death() == (
                "out of memory: a limit outside the session was reached, of an outer control group or the machine"
            )
        finally:
            session.close()
    finally:
        outer.rmdir()

"""An interpreter in a sandbox, driven as its worker drives it, with a deadline on every wait."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from replwire.policy import Policy
from replworker.runtimes.commands import build_command
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.runtimes.process_start import InterpreterCommand
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.machine import Machine
from replworker.sandbox.plan import SandboxPlan
from replworker.sandbox.prepare import prepare_plan

TIMEOUT_S = 20.0
LIMITS = {"value-bytes": 10_000, "trace-frames": 10, "trace-bytes": 10_000}


class SandboxedPython:
    """A python session without its worker: ready, then assigned."""

    def __init__(
        self, policy: Policy, machine: Machine, *, python: str = sys.executable, directory: str | None = None
    ) -> None:
        self.policy = policy
        self.plan = prepare_plan(
            policy,
            machine,
            "python",
            python,
            {"PATH": "/usr/bin:/bin"},
            slot=os.getpid(),
            directory=directory,
            has_holder=True,
        )
        self.wrapper = BubblewrapSandbox(self.plan)
        self.child = InterpreterProcess(build_command("python", python, self.plan.env, self.wrapper))
        self.frames: list[dict[str, Any]] = []
        self.streams = {self.child.out: b"", self.child.err: b"", self.child.background: b""}
        self._number = 0
        ready = self.frame()
        assert ready["t"] == "ready"

    @property
    def out(self) -> str:
        return self.streams[self.child.out].decode()

    @property
    def late(self) -> str:
        return self.streams[self.child.background].decode()

    def assign(self, directory: Path | str | None = None) -> None:
        if directory is not None and self.plan.late:
            assert self.wrapper.attach(self.policy, str(directory)).error is None
        answer = self.ask("assign", cwd=None if directory is None else str(directory), env={}, limits=LIMITS)
        assert answer["error"] is None

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.send(op, **fields)
        return self.frame()

    def send(self, op: str, **fields: Any) -> None:
        self._number += 1
        self.child.send(json.dumps({"op": op, "n": self._number, **fields}).encode())

    def start(self, code: str, stdin: bool = False) -> None:
        self.send("eval", code=code, name="<test>", silent=False, stdin=stdin, history=True)

    def eval(self, code: str) -> dict[str, Any]:
        self.start(code)
        return self.frame()

    def value(self, code: str) -> str:
        answer = self.eval(code)
        assert answer["outcome"] == "ok", answer["traceback"]
        return str(answer["value"])

    def frame(self) -> dict[str, Any]:
        self.until(lambda: bool(self.frames))
        return self.frames.pop(0)

    def until(self, done: Any) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not done():
            left = deadline - time.monotonic()
            assert left > 0, f"nothing came; it said {self.streams}"
            self._pump(left)

    def _pump(self, seconds: float) -> None:
        ready = select.select([self.child.control, *self.streams, self.child.exit_fd], [], [], seconds)[0]
        if self.child.control in ready:
            self.frames += [json.loads(frame) for frame in self.child.receive()]
        for fd in self.streams:
            if fd in ready:
                self.streams[fd] += self.child.read(fd) or b""
        if self.child.exit_fd in ready and not self.frames:
            raise AssertionError(f"{self.child.poll_exit()}; it said {self.streams}")

    def death(self) -> str:
        """Wait for its end, say how it came, and end what it leaves, as its worker does."""
        assert select.select([self.child.exit_fd], [], [], TIMEOUT_S)[0], "it lives"
        cause = self.child.poll_exit()
        assert cause is not None
        self.child.kill()
        return cause

    def close(self) -> None:
        self.child.kill()
        with suppress(ChildProcessError):  # the test has buried it
            os.waitpid(self.child.outer_pid, 0)
        self.wrapper.close()
        self.child.close()


def starts(plan: SandboxPlan, argv: list[str]) -> str | None:
    """Run a command in a sandbox to its end; None when it exits with 0, else how it ended and what it said."""
    wrapper = BubblewrapSandbox(plan)
    child = InterpreterProcess(InterpreterCommand(argv, plan.env, wrapper))
    result, open_fds = {child.out: b"", child.err: b""}, {child.out, child.err}
    try:
        while open_fds:
            ready = select.select(list(open_fds), [], [], TIMEOUT_S)[0]
            assert ready, f"it goes on; it said {result}"
            for fd in ready:
                data = child.read(fd) or b""
                result[fd] += data
                open_fds -= set() if data else {fd}
        assert select.select([child.exit_fd], [], [], TIMEOUT_S)[0], "it lives"
        how = child.poll_exit()
        text = (result[child.err] or result[child.out]).decode().strip()
        return None if how == "the interpreter exited with code 0" else f"{how} {text}"
    finally:
        child.kill()
        wrapper.close()
        child.close()


def has_exited(pid: int) -> bool:
    """Return whether a process ends soon: it does not exist, or no thread of it runs any more."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        select.select([], [], [], 0.005)
    return False


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found = [pid]
    for parent in found:
        try:
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found[1:]

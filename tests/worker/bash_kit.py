"""A real bash with its real driver, spoken to through the worker's own Child and codec, with a deadline on each wait."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

from replworker.runtimes.bash import command
from replworker.runtimes.interpreter_process import InterpreterProcess

TIMEOUT_S = 20.0
RESEND_S = 0.5  # as the worker has it
BASH = "/bin/bash"


class Bash:
    """Starts a session, talks to it, keeps all that it writes; `close` leaves no process behind."""

    def __init__(self, **env: str) -> None:
        base = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C.UTF-8"}
        self.child = InterpreterProcess(command.build_bash_command(BASH, base | env))
        self.stdout, self.stderr, self.late = bytearray(), bytearray(), bytearray()
        self.frames: list[dict[str, Any]] = []
        self._pipes = {self.child.out: self.stdout, self.child.err: self.stderr, self.child.background: self.late}
        self.number = 0
        self.input_requests = 0
        self.cause: str | None = None

    def send(self, **message: Any) -> None:
        self.child.send(json.dumps(message).encode())

    def frame(self) -> dict[str, Any]:
        """The next frame; fails when none comes."""
        self.until(lambda: bool(self.frames))
        return self.frames.pop(0)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to anything but an eval."""
        self.number += 1
        self.send(op=op, n=self.number, **fields)
        answer = self.frame()
        assert answer["n"] == self.number
        return answer

    def assign(self, cwd: str | None = None, **env: str) -> dict[str, Any]:
        return self.ask("assign", cwd=cwd, env=env, limits={})

    def start_eval(self, code: str, *, stdin: bool = False, silent: bool = False) -> int:
        self.number += 1
        name = f"<work:{self.number}>"
        self.send(op="eval", n=self.number, code=code, name=name, silent=silent, stdin=stdin, history=True)
        return self.number

    def result(self, lines: tuple[str, ...] = ()) -> dict[str, Any]:
        """The result of the eval that was started last; each need-input is answered with the next line."""
        left = list(lines)
        while True:
            answer = self.frame()
            assert answer["n"] == self.number, answer
            if answer["t"] == "result":
                assert not left, f"never asked for {left}"
                self.read_all()
                return answer
            assert answer["t"] == "need-input"
            self.input_requests += 1
            if left:
                os.write(self.child.stdin, left.pop(0).encode())

    def eval(self, code: str, lines: tuple[str, ...] = (), **options: bool) -> dict[str, Any]:
        self.start_eval(code, **options)
        return self.result(lines)

    def value(self, code: str, lines: tuple[str, ...] = (), **options: bool) -> str:
        answer = self.eval(code, lines, **options)
        assert answer["outcome"] == "ok", answer
        assert isinstance(answer["value"], str)
        return answer["value"]

    def out(self, code: str, lines: tuple[str, ...] = (), **options: bool) -> str:
        """Return the output of this code to stdout."""
        before = len(self.stdout)
        self.value(code, lines, **options)
        return self.stdout[before:].decode()

    def err(self, code: str) -> str:
        """Return the output of this code to stderr."""
        before = len(self.stderr)
        self.value(code)
        return self.stderr[before:].decode()

    def interrupt(self) -> None:
        """As the worker does: say which eval, then signal."""
        self.send(op="interrupt", n=self.number)
        self.child.interrupt()

    def interrupted(self, code: str) -> dict[str, Any]:
        """Run code that says that it has begun, interrupt it then, and take its result."""
        self.start_eval(f"echo begun; {code}")
        self.printed("begun")
        return self.stopped()

    def stopped(self) -> dict[str, Any]:
        """Interrupt the running eval, and take its result."""
        self.interrupt()
        # A program that is just being started may miss a signal: the worker sends one more, and so do we.
        deadline = time.monotonic() + RESEND_S
        while not self.frames and time.monotonic() < deadline:
            self.pump(deadline - time.monotonic())
        if not self.frames:
            self.child.interrupt()
        return self.result()

    def printed(self, text: str) -> None:
        """Wait for a text on stdout, and forget what has been there."""
        self.until(lambda: text.encode() in self.stdout)
        self.stdout.clear()

    def until(self, done: Callable[[], bool]) -> None:
        """Read whatever comes until `done()`; fails at the deadline, or when the session has ended before."""
        deadline = time.monotonic() + TIMEOUT_S
        while not done():
            assert time.monotonic() < deadline, f"nothing; stderr: {bytes(self.stderr)[-2000:]!r}"
            assert self.cause is None, f"{self.cause}; stderr: {bytes(self.stderr)[-2000:]!r}"
            self.pump(deadline - time.monotonic())

    def settle(self) -> None:
        """Wait for one result, or the end; code that waits is interrupted, as by a time limit."""
        limit, deadline = time.monotonic() + 0.5, time.monotonic() + 20
        while not any(frame["t"] == "result" for frame in self.frames) and self.cause is None:
            assert time.monotonic() < deadline, "it hangs"
            self.pump(0.1)
            if time.monotonic() > limit and self.cause is None:
                self.interrupt()
                limit += 0.5
        results = [frame for frame in self.frames if frame["t"] == "result"]
        self.frames.clear()
        self.read_all()
        assert len(results) == 1 or self.cause is not None

    def exit_text(self) -> str:
        """Return the cause of the session's end, as the worker words it."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.cause is None:
            assert time.monotonic() < deadline, "it lives"
            self.pump(deadline - time.monotonic())
        self.read_all()
        return self.cause

    def pump(self, seconds: float) -> None:
        """Take what comes, once."""
        child = self.child
        watched = [child.control.fileno(), child.exit_fd, *self._pipes]
        for fd in select.select(watched, [child.control] if child.has_unsent else [], [], max(0.0, seconds))[0]:
            if fd == child.control.fileno():
                child.flush()
                self.frames += [json.loads(body) for body in child.receive()]
            elif fd == child.exit_fd:
                self.frames += [json.loads(body) for body in child.receive()]
                self.cause = child.poll_exit()
                return
            else:
                self._read(fd)
        child.flush()

    def read_all(self) -> None:
        """Read the present contents of the pipes."""
        for fd in list(self._pipes):
            while self._read(fd):
                pass

    def close(self) -> None:
        child = self.child
        child.kill()
        if self.cause is None:
            os.waitpid(child.pid, 0)
        child.close()

    def _read(self, fd: int) -> bool:
        data = self.child.read(fd)
        if data:
            self._pipes[fd] += data
        elif data is not None:
            del self._pipes[fd]
        return bool(data)

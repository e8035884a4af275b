"""A worker's session in a sandbox without its broker: requests go in and frames come out, with a deadline on each wait."""

from __future__ import annotations

import json
import os
import select
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from replwire.deadlines import Deadlines
from replwire.identities import Principal
from replwire.limits import Limits
from replwire.link import (
    HEADER_BYTES,
    AssignBody,
    AssignedBody,
    CancelBody,
    ExitedBody,
    FrameKind,
    ResumeBody,
    RolledBackBody,
    encode,
    pack,
    unpack,
)
from replwire.policy import Checkpoints, Policy
from replworker.boot import WorkerArgs, build_loop, start_interpreter
from replworker.sandbox.machine import Machine
from replworker.session_sandbox import SandboxRequest
from sandbox_kit import TIMEOUT_S, descendants


class _Link:
    """The worker's link as two queues; it never disconnects and never exerts backpressure."""

    is_backpressured = False

    def __init__(self) -> None:
        self.from_worker: deque[bytes] = deque()
        self.to_worker: deque[bytes] = deque()
        self.monitor_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def send(self, frame: bytes) -> None:
        self.from_worker.append(frame)

    def receive(self) -> bytes | None:
        return self.to_worker.popleft()

    def is_disconnected(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: frames are never held back."""


class SessionDied(Exception):
    """The interpreter is gone, and nothing took its place. The message is the cause."""


class CheckpointedSession:
    """A python session with its worker's real loop. Epochs and routes are given as a broker gives them."""

    def __init__(
        self,
        machine: Machine,
        checkpoints: Checkpoints = "manual",
        *,
        policy: Policy | None = None,
        limits: Limits | None = None,
        python: str = sys.executable,
        sandboxed: bool = True,
    ) -> None:
        self.limits = limits or Limits()
        self._state = tempfile.TemporaryDirectory(prefix="rpl-", dir="/tmp")
        sandbox_request = SandboxRequest(policy or Policy(), machine, os.getpid()) if sandboxed else None
        env = {"PATH": "/usr/bin:/bin"}
        args = WorkerArgs("", "", "python", None, python, env, self.limits, self._state.name, (), sandbox_request)
        started = start_interpreter(args)
        self.child, self._sandbox = started.process, started.sandbox
        self._link: Any = _Link()
        self.timers = Deadlines()
        self.loop = build_loop(args, self._link, started, self.timers)
        self.loop.start()
        self.epoch, self._route, self._eval = 1, 0, 0
        self._replies: dict[int, list[dict[str, Any]]] = {}
        self.rollbacks: list[RolledBackBody] = []
        self.assigned: AssignedBody | None = None
        self.has_resumed = True  # False: the broker is slow to learn of a rollback
        self._ready = False
        self.until(lambda: self._ready)
        me = Principal(identity=f"uid:{os.getuid()}")
        assign = AssignBody(
            session="s1", name="work", owner=me, cwd=None, env=[], limits=self.limits, checkpoints=checkpoints
        )
        self._send(pack(FrameKind.ASSIGN, encode(assign), epoch=self.epoch))
        self.until(lambda: self.assigned is not None)

    # --- requests ---

    def ask(self, op: str, *, eval_id: int = 0, **fields: Any) -> int:
        """Send a request; return its route."""
        self._route += 1
        body = json.dumps({"id": f"r{self._route}", "op": op, "session": "s1", **fields}).encode()
        self._replies[self._route] = []
        self._send(pack(FrameKind.REQUEST, body, epoch=self.epoch, eval=eval_id, route=self._route))
        return self._route

    def start(self, code: str) -> int:
        """Begin an eval; return its route."""
        self._eval += 1
        return self.ask("eval", eval_id=self._eval, code=code)

    def done(self, route: int) -> dict[str, Any]:
        """Wait for the end of a request."""
        self.until(lambda: any("done" in reply.get("status", ()) for reply in self._replies[route]))
        merged: dict[str, Any] = {}
        for reply in self._replies[route]:
            merged |= reply
        return merged

    def eval(self, code: str) -> dict[str, Any]:
        return self.done(self.start(code))

    def value(self, code: str) -> str:
        answer = self.eval(code)
        assert answer["status"] == ["done"], answer
        return str(answer.get("value"))

    def checkpoint(self, name: str | None = None) -> dict[str, Any]:
        self._eval += 1
        named = {} if name is None else {"name": name}
        return self.done(self.ask("checkpoint", eval_id=self._eval, **named))

    def take_checkpoint(self, name: str | None = None) -> int:
        """Take a checkpoint that succeeds; return its number."""
        answer = self.checkpoint(name)
        assert answer["status"] == ["done"], answer
        return int(answer["checkpoint"])

    def checkpoints(self) -> list[dict[str, Any]]:
        return list(self.done(self.ask("ls-checkpoints")).get("checkpoints") or [])

    def roll_back(self, to: int | str | None = None) -> RolledBackBody:
        """Roll back with success; return what the worker told its broker."""
        before, fields = len(self.rollbacks), {} if to is None else {"to": to}
        route = self.ask("rollback", **fields)
        self.until(lambda: len(self.rollbacks) > before or bool(self._replies[route]))
        assert len(self.rollbacks) > before, self._replies[route]
        return self.rollbacks[-1]

    def cancel(self, route: int, **fields: Any) -> None:
        self._send(pack(FrameKind.CANCEL, encode(CancelBody(**fields)), epoch=self.epoch, route=route))

    def settle(self, seconds: float = 0.05) -> None:
        """Run the loop until nothing has happened for a while: automatic checkpoints are complete."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._pump(0.01) or self.loop._session._checkpoints.is_busy:
                until = time.monotonic() + seconds

    # --- the loop ---

    def until(self, done: Any) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not done():
            assert time.monotonic() < end, "nothing came"
            self._pump(0.05)

    def until_rollback(self, before: int) -> None:
        """Wait for one more rollback than there were."""
        self.until(lambda: len(self.rollbacks) > before)

    def _send(self, frame: bytes) -> None:
        self._link.to_worker.append(frame)
        self.loop.handle_link()
        self.loop.after_poll()
        self._read_link()

    def _pump(self, seconds: float) -> bool:
        due = self.timers.next_due()
        wait = seconds if due is None else max(0.0, min(seconds, due - time.monotonic()))
        ready = bool(select.select([self.loop.fileno()], [], [], wait)[0])
        if ready:
            self.loop.handle_descriptors()
        self.loop.after_poll()
        return self._read_link() or ready

    def _read_link(self) -> bool:
        some = bool(self._link.from_worker)
        while self._link.from_worker:
            frame = self._link.from_worker.popleft()
            self._on_frame(frame)
        return some

    def _on_frame(self, frame: bytes) -> None:
        header, body = unpack(frame), frame[HEADER_BYTES:]
        if header.kind == FrameKind.READY:
            self._ready = True
        elif header.kind == FrameKind.ASSIGNED:
            self.assigned = msgspec.json.decode(body, type=AssignedBody)
            assert self.assigned.error is None, self.assigned.error
        elif header.kind in (FrameKind.REPLY, FrameKind.OUTPUT) and header.epoch == self.epoch:
            cut = header.first
            for part in (body[:cut], body[cut:]) if cut else (body,):
                self._replies[header.route].append(json.loads(part))
        elif header.kind == FrameKind.ROLLED_BACK:
            assert header.epoch == self.epoch
            self.rollbacks.append(msgspec.json.decode(body, type=RolledBackBody))
            if self.has_resumed:
                self.resume()
        elif header.kind == FrameKind.INTERPRETER_EXITED:
            raise SessionDied(msgspec.json.decode(body, type=ExitedBody).cause)

    def resume(self, *, report: bool = True) -> None:
        """Begin the epoch after a rollback, as the broker does."""
        self.epoch += 1
        self._link.to_worker.append(pack(FrameKind.RESUME, encode(ResumeBody(report)), epoch=self.epoch))
        self.loop.handle_link()
        self.loop.after_poll()

    def inside(self) -> list[int]:
        """Pids in the sandbox besides its first process."""
        return descendants(self.child.outer_pid)[1:]

    def close(self) -> None:
        self.child.kill()
        try:
            os.waitpid(self.child.outer_pid, 0)
        except ChildProcessError:  # its loop has seen it die
            pass
        self.loop.close()
        if self._sandbox is not None:
            self._sandbox.wrapper.close()
        self.child.close()
        os.close(self._link.monitor_fd)
        self._state.cleanup()


def status_of(pid: int) -> str:
    """The state letter of a process, X when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"

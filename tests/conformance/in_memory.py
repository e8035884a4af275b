"""A whole broker in the test's own process and thread: no socket to it, no process but the interpreters.

The real core decides, the real `Session` and `Loop` of the worker keep the interpreters. In between, a pump
carries effects and frames from list to list. Nothing happens but while a test sends or waits.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from kit import TIMEOUT_S, UNSANDBOXED, LineWire, wait_until
from replbroker.broker_extensions import BrokerExtensions
from replbroker.core.effects import (
    CloseConnection,
    DeleteSnapshot,
    Disconnect,
    Effect,
    Kill,
    Log,
    Spawn,
    StopBroker,
    ToClient,
    ToWorker,
)
from replbroker.core.engine import BrokerCore
from replbroker.core_config import BrokerRun, CoreServices, build_core_config, find_interpreters, session_env
from replbroker.launch.sandbox_provider import SandboxProvider
from replwire.config import load
from replwire.deadlines import Deadlines
from replwire.keys import KeyStore
from replwire.line_framing import LineFramer
from replwire.link import ExitedBody, FrameKind, encode, pack
from replworker.boot import START_ERRORS, WorkerArgs, build_loop, start_interpreter


class MemoryLink:
    """The worker's link as two queues; it never disconnects and never exerts backpressure."""

    is_backpressured = False

    def __init__(self) -> None:
        self.from_worker: deque[bytes] = deque()  # by the worker
        self.to_worker: deque[bytes] = deque()  # by the broker
        self.monitor_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def send(self, frame: bytes) -> None:
        self.from_worker.append(frame)

    def receive(self) -> bytes | None:
        return self.to_worker.popleft()

    def is_disconnected(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: frames are never held back."""


class MemoryWorker:
    """A worker without a process of its own: `boot.main` without process setup. Raises one of START_ERRORS."""

    def __init__(self, args: WorkerArgs) -> None:
        started = start_interpreter(args)
        self._child = started.process
        self.link = MemoryLink()
        self.timers = Deadlines()
        link: Any = self.link
        self.loop = build_loop(args, link, started, self.timers)
        self.loop.start()

    def handle_frame(self, frame: bytes) -> None:
        self.link.to_worker.append(frame)
        self.loop.handle_link()
        self.loop.after_poll()

    def close(self) -> None:
        """Kill and reap the interpreter, and close every descriptor."""
        child = self._child
        child.kill()
        assert select.select([child.exit_fd], [], [], TIMEOUT_S)[0], "the interpreter was not killed"
        try:
            os.waitpid(child.pid, 0)
        except ChildProcessError:  # its loop has seen it die
            pass
        child.close()
        self.loop.close()
        os.close(self.link.monitor_fd)


class InMemoryBroker:
    """A broker that is pumped by its clients; see `BrokerSite`."""

    def __init__(self, *settings: str) -> None:
        base = ("broker.warm-workers=1", "limits.close-grace-ms=300")
        flags = dict(setting.split("=", 1) for setting in (*base, *settings))
        config = load(UNSANDBOXED, flags=flags).config
        self._limits = config.limits
        self._directory = tempfile.mkdtemp(prefix="rpl-", dir="/tmp")
        env = session_env(os.environ, config.session.pass_env)
        self._interpreters = find_interpreters(config)
        self._common = (env, config.limits, self._directory, tuple(config.session.load_paths))
        self._last_words: deque[tuple[int, bytes]] = deque()  # of workers that never came to be
        self._workers: dict[int, MemoryWorker] = {}
        self._wires: dict[bytes, MemoryWire] = {}
        self._count = 0
        self._log: list[str] = []
        self.has_exited = False
        self._sandbox = SandboxProvider(config.sandbox, sys.executable, env, [])
        services = CoreServices(
            run=BrokerRun.begin(),
            runtimes=tuple(self._interpreters),
            keys=KeyStore(self._directory),
            sandbox=self._sandbox.summary,
            extensions=BrokerExtensions([]),
            state_dir=Path(self._directory),
        )
        self.core = BrokerCore(build_core_config(config, services, idle_exit=False))
        self.apply(self.core.start(time.monotonic()))

    # --- BrokerSite ---

    def wire(self) -> MemoryWire:
        return MemoryWire(self, self._limits.max_message_bytes)

    def pid(self) -> int:
        return os.getpid()

    def log_text(self) -> str:
        return "\n".join(self._log)

    def has_ended(self) -> bool:
        def exited() -> bool:
            self.pump(0.1)
            return self.has_exited

        return bool(wait_until(exited, "the broker ends"))

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        for wire in self._wires.values():
            wire.hung_up = True
        shutil.rmtree(self._directory, ignore_errors=True)

    # --- clients ---

    def admit(self, wire: MemoryWire) -> bytes:
        """Connect a client as line transports do: one without room gets the reason and is closed."""
        self._count += 1
        peer = b"M%d" % self._count
        refusal = self.core.on_connect(peer, f"uid:{os.getuid()}", time.monotonic())
        if refusal is not None:
            wire.inbox.append(refusal)
            wire.hung_up = True
            self.apply(self.core.on_disconnect(peer, time.monotonic()))
            return peer
        self._wires[peer] = wire
        return peer

    def handle_request(self, peer: bytes, body: bytes) -> None:
        self.apply(self.core.handle_request(peer, body, time.monotonic()))

    def on_disconnect(self, peer: bytes) -> None:
        if self._wires.pop(peer, None) is not None:
            self.apply(self.core.on_disconnect(peer, time.monotonic()))

    # --- the pump ---

    def pump(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for something to arrive or come due, and process it."""
        waiting = {worker.loop.fileno(): worker for worker in self._workers.values()}
        ready = select.select(list(waiting), [], [], self._wait_s(timeout_s))[0]
        for fd in ready:
            waiting[fd].loop.handle_descriptors()
        for number, worker in list(self._workers.items()):
            worker.loop.after_poll()
            while worker.link.from_worker and number in self._workers:
                self.apply(self.core.handle_worker_frame(number, worker.link.from_worker.popleft(), time.monotonic()))
        while self._last_words:
            self.apply(self.core.handle_worker_frame(*self._last_words.popleft(), time.monotonic()))
        self.apply(self.core.tick(time.monotonic()))

    def _wait_s(self, timeout_s: float) -> float:
        if self._last_words or any(worker.link.from_worker for worker in self._workers.values()):
            return 0.0
        dues = [self.core.next_deadline(), *(worker.timers.next_due() for worker in self._workers.values())]
        now = time.monotonic()
        return max(0.0, min(timeout_s, *(due - now for due in dues if due is not None)))

    def apply(self, effects: list[Effect]) -> None:
        """Carry out effects."""
        for effect in effects:
            if isinstance(effect, ToClient):
                if effect.peer in self._wires:
                    self._wires[effect.peer].inbox.append(bytes(effect.body))
            elif isinstance(effect, ToWorker):
                self._workers[effect.worker].handle_frame(effect.frame)
            elif isinstance(effect, Spawn):
                self._spawn(effect)
            elif isinstance(effect, Kill):
                worker = self._workers.pop(effect.worker, None)
                if worker is not None:
                    worker.close()
            elif isinstance(effect, CloseConnection | Disconnect):
                if effect.peer in self._wires:
                    self._wires[effect.peer].hung_up = True
            elif isinstance(effect, DeleteSnapshot):
                Path(effect.path).unlink(missing_ok=True)
            elif isinstance(effect, Log):
                self._log.append(effect.text)
            elif isinstance(effect, StopBroker):
                self.has_exited = True
        if self.has_exited:
            self.close()

    def _spawn(self, effect: Spawn) -> None:
        spec = effect.spec
        interpreter = self._interpreters[spec.runtime]
        try:
            sandbox_request = self._sandbox.request_for(effect.worker, spec)
            args = WorkerArgs("", "", spec.runtime, spec.environment, interpreter, *self._common, sandbox_request)
            self._workers[effect.worker] = MemoryWorker(args)
        except START_ERRORS as error:
            self._last_words.append((effect.worker, pack(FrameKind.INTERPRETER_EXITED, encode(ExitedBody(str(error))))))


class MemoryWire(LineWire):
    """A line connection with both ends in this process."""

    def __init__(self, memory: InMemoryBroker, max_bytes: int) -> None:
        self._memory = memory
        self._lines = LineFramer(max_bytes)
        self.inbox: deque[bytes] = deque()
        self.hung_up = False
        self._begin()
        self._peer = memory.admit(self)

    def close(self) -> None:
        self._memory.on_disconnect(self._peer)

    def raw(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if not self.hung_up:
                self._memory.handle_request(self._peer, line)

    def line(self, timeout_s: float = TIMEOUT_S) -> bytes:
        """Return the next line, empty once the connection has ended."""
        self._memory.pump(0.0)  # who only asks what the core knows lets time go by as well
        deadline = time.monotonic() + timeout_s
        while not self.inbox and not self.hung_up:
            left = deadline - time.monotonic()
            assert left > 0, "no message came"
            self._memory.pump(left)
        return self.inbox.popleft() + b"\n" if self.inbox else b""

    def _take(self, timeout_s: float) -> bytes:
        line = self.line(timeout_s)
        assert line, "the connection ended"
        return line

    def __enter__(self) -> Any:
        return self

"""The broker's loop: hear, ask the core, do its effects, sleep until something comes or is due."""

from __future__ import annotations

import math
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from replbroker.core.audit import BROKER
from replbroker.core.broker import Core
from replbroker.core.effects import (
    Audit,
    Discard,
    Disconnect,
    Effect,
    Exit,
    HangUp,
    Happened,
    Judge,
    Kill,
    LookAtMemory,
    Note,
    Pause,
    RemoveEnvironment,
    RereadConfig,
    SaveSession,
    Spawn,
    ToClient,
    ToWorker,
)
from replbroker.extending import Extending
from replbroker.file_watch import FileWatch
from replbroker.guarded_steps import GuardedSteps
from replbroker.launch.base import Launcher
from replbroker.launch.memory import MachineMemory
from replbroker.reloading import ConfigReload
from replbroker.session_list import SessionListFile
from replbroker.signals import Signals
from replbroker.transports.auth import Zap
from replbroker.transports.router import PREFIX, RETRY_S, Clients
from replbroker.transports.streams import Streams
from replbroker.transports.workers import Workers
from replbroker.watch.audit import AuditFile
from replbroker.watch.base import Watcher
from replwire.deadlines import GapDetector
from replwire.limits import Limits
from replwire.terminal import escape_lines

_POLLIN = int(zmq.POLLIN)
_LONG_S = 3600.0  # the longest sleep
_SHORT_S = 1.0  # the longest while evals run: a suspend within a sleep is known as exactly as this
_TELL_PAUSE_S = 0.01  # how long an event may wait for others
_TOLD_AT_ONCE = 100  # effects of events between two looks at what has come in
_MOST_UNTOLD = 10_000  # of them that wait: a tenth of a second
_LINGER_MS = 1_000  # for the last answers of a broker that ends


class Serve:
    """One thread, one wait."""

    def __init__(
        self,
        core: Core,
        clients: Clients,
        workers: Workers,
        zap: Zap,
        launcher: Launcher,
        machine_memory: MachineMemory,
        reloading: ConfigReload,
        session_list: SessionListFile,
        audit: AuditFile,
        token: Callable[[], str],
        watchers: Sequence[Watcher],
        extending: Extending,
        limits: Limits,
    ) -> None:
        self._core = core
        self._clients = clients
        self._workers = workers
        self._zap = zap
        self._launcher = launcher
        self._machine_memory = machine_memory
        self._reloading = reloading
        self._session_list = session_list
        self._audit = audit
        self._token = token
        self._watchers = watchers
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._exit: str | None = None
        self._listened = time.monotonic()  # nothing was left then that a worker had said
        self._key_watch: FileWatch | None = None
        self._unsaved = False
        self._tell_at: float | None = None
        clients.listener = self
        self._register(clients.monitor_fd, clients.watch)
        self._register(zap.socket.fileno(), zap.answer)
        self.streams = Streams(self, limits.max_message_bytes)
        self._register(self.streams.fileno(), lambda: self.streams.turn(time.monotonic()))
        launcher.watch(self._register, self._drop)
        for watcher in watchers:
            watcher.watch(self._register, self._drop)
        self._steps = self._build_steps()
        self._hooks = extending.join(core, limits, self._do)
        if self._hooks is not None:
            self._hooks.watch(self._register)

    def _build_steps(self) -> GuardedSteps:
        """Build the steps that are taken when they are due, in their order."""
        steps = GuardedSteps(log)
        steps.add(lambda: self.streams.due, self.streams.turn)
        steps.add(self._core.next_deadline, lambda now: self._do(self._core.tick(now, self._listened)))
        steps.add(lambda: self._tell_at, lambda _: self._tell())
        steps.add(lambda: self._clients.due, self._clients.flush)
        steps.add(lambda: self._audit.due, self._audit.flush)
        for watcher in self._watchers:
            steps.add(partial(getattr, watcher, "due"), watcher.flush)
        return steps

    def restore(self) -> list[str]:
        """Take over what a broker before this one saved; the sessions that were lost with it."""
        saved, damage = self._session_list.previous()
        if damage is not None:
            log(f"the list of sessions cannot be read, epochs begin at {saved.floor + 1}: {damage}")
        lost = self._core.restore(saved)
        self._saved(self._session_list.begin(self._core.saved))
        return lost

    def watch_keys(self, folders: Sequence[Path]) -> None:
        """Have keys and tokens that are taken back take hold at once; without, each request of theirs looks."""
        try:
            watch = FileWatch()
        except OSError as error:
            log(f"a key that is taken back ends what waits for answers within seconds, not at once: {error.strerror}")
            return
        self._key_watch = watch

        def changed() -> None:
            watch.changed()
            look()
            self._do(self._core.identities_changed(time.monotonic()))

        def look() -> None:
            for folder in folders:
                watch.add(folder)

        look()
        self._register(watch.fd, changed)

    def _register(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _drop(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def run(self, signals: Signals) -> str:
        """Serve until the core says Exit; returns why."""
        self._register(signals.fd, lambda: self._signalled(signals))
        self._clients.watch()  # a descriptor of ZeroMQ tells nothing before it was asked
        self._do(self._core.start(time.monotonic()))
        clients, workers = self._clients.socket, self._workers.socket
        # libzmq tells of messages at edges, and what it takes in while sending it does not tell at all; its own
        # poll knows. Everything that is not hot stands behind the one descriptor of the epoll.
        items: Any = [(workers, _POLLIN), (clients, _POLLIN), (self._epoll.fileno(), _POLLIN)]
        gaps = GapDetector(time.monotonic(), time.thread_time())
        while self._exit is None:
            wait_ms = self._timeout_ms()
            gaps.sleeps(wait_ms / 1000, time.monotonic(), time.thread_time())
            come = zmq.zmq_poll(items, wait_ms)
            if gap := gaps.wakes(time.monotonic(), time.thread_time()):
                self._core.suspended(gap)
            if not come or come[0][0] is not workers:
                self._listened = time.monotonic()
            for ready, _ in come:
                if ready is workers:
                    self._steps.run(self._hear_worker)
                elif ready is clients:
                    self._steps.run(self._hear_client)
                else:
                    self._steps.run(self._others)
            if self._clients.backlogged:
                self._steps.run(self._retry)
            self._steps.run_due(time.monotonic())
        self._do(self._core.rest())
        return self._exit

    def _retry(self) -> None:
        for peer in self._clients.retry():
            self._unreachable(peer)

    def _timeout_ms(self) -> int:
        due = self._steps.next_due()
        longest = _SHORT_S if self._core.state.gate.taken else _LONG_S
        wait = longest if due is None else min(longest, max(0.0, due - time.monotonic()))
        return math.ceil(1000 * (min(wait, RETRY_S) if self._clients.backlogged else wait))

    def _hear_worker(self) -> None:
        if (heard := self._workers.receive()) is not None:
            self._do(self._core.worker_said(*heard, time.monotonic()))

    def _hear_client(self) -> None:
        if (heard := self._clients.receive()) is not None:
            self.hear(*heard)

    # --- what transports tell ---

    def opened(self, peer: bytes, identity: str, groups: tuple[int, ...] = ()) -> bytes | None:
        """A connection was made."""
        refusal = self._core.connected(peer, identity, time.monotonic(), groups)
        self._do(self._core.effects())
        return refusal

    def identified(self, peer: bytes, identity: str) -> None:
        """A connection has shown a key."""
        self._core.identified(peer, identity)

    def departed(self, peer: bytes, identity: str) -> None:
        """What comes from this peer was said by a connection that has ended."""
        self._core.meet(peer, identity)

    def has_room(self, peer: bytes) -> bool:
        """Whether a connection that was one too many is not any more."""
        return self._core.state.connections.has_room(peer)

    def turned_away(self, peer: bytes, why: str) -> None:
        """Nothing of this connection is to be done."""
        self._core.turn_away(peer, why)

    def hear(self, peer: bytes, body: bytes) -> None:
        """A request came. One that there is no memory for ends its connection: it can be answered in no other way."""
        try:
            effects = self._core.hear(peer, body, time.monotonic())
        except MemoryError:
            self._hang_up(peer)
            raise
        self._do(effects)

    def awaits(self, peer: bytes) -> bool:
        """Whether a client still waits for answers."""
        return self._core.awaits(peer)

    def gone(self, peer: bytes) -> None:
        """A connection has ended."""
        self._do(self._core.disconnected(peer, time.monotonic()))

    # --- the loop's steps ---

    def _unreachable(self, peer: bytes) -> None:
        self._do(self._core.peer_gone(peer, time.monotonic()))

    def _others(self) -> None:
        for fd, _ in self._epoll.poll(0):
            handler = self._handlers.get(fd)
            if handler is not None:
                self._steps.run(handler)
        for worker, cause in self._launcher.died():
            self._workers.forget(worker)
            self._do(self._core.worker_gone(worker, cause, time.monotonic()))
        for environment, error in self._launcher.removed():
            self._do(self._core.environment_removed(environment, error, time.monotonic()))

    def _do(self, effects: list[Effect]) -> None:
        before: bytes | memoryview | None = None
        dying: list[int] = []
        for effect in effects:
            kind = type(effect)
            try:
                if kind is ToClient:
                    assert isinstance(effect, ToClient)
                    if effect.more:
                        before = effect.body
                        continue
                    transport = self._clients if effect.peer[:1] == PREFIX else self.streams
                    if not transport.send(effect.peer, effect.body, effect.output_of, before, effect.event):
                        self._unreachable(effect.peer)
                    before = None
                elif kind is ToWorker:
                    self._workers.send(effect.worker, effect.frame)  # type: ignore[union-attr]
                elif kind is Happened:
                    now = time.monotonic()
                    for watcher in self._watchers:
                        watcher.happened(effect, now)  # type: ignore[arg-type]
                elif kind is Kill:
                    dying.append(effect.worker)  # type: ignore[union-attr]
                else:
                    self._do_rare(effect)
            except (OSError, MemoryError) as error:  # the effects after it are of others
                self._steps.failed(error)
                before = None
                if isinstance(effect, ToClient):  # else it would wait for an answer that never comes
                    self._hang_up(effect.peer)
        self._steps.run(self.streams.let_go)
        # Last: to take a process apart keeps the machine busy, and the fresh one is to be on its way by then.
        for worker in dying:
            self._workers.forget(worker)
            self._steps.run(partial(self._launcher.kill, worker))
        if self._tell_at is None and self._core.untold:
            self._tell_at = time.monotonic() + _TELL_PAUSE_S

    def _tell(self) -> None:
        """Hand on what happened: some evals of it at once, for that costs a third of one by one; to some of many
        readers, so that no answer waits for all of them."""
        self._do(self._core.rest(_TOLD_AT_ONCE))
        while self._core.untold > _MOST_UNTOLD:  # more happens than can be told, so it has to wait
            self._do(self._core.rest(_TOLD_AT_ONCE))
        self._tell_at = time.monotonic() if self._core.untold else None

    def _do_rare(self, effect: Effect) -> None:
        if isinstance(effect, Spawn):
            token = self._token()
            self._workers.expect(effect.worker, token)
            self._launcher.spawn(effect.worker, effect.spec, token)
        elif isinstance(effect, Judge):
            assert self._hooks is not None, "the core asks no hooks where there are none"
            self._hooks.ask(effect)
        elif isinstance(effect, HangUp):
            self._hang_up(effect.peer, at_once=effect.at_once)
        elif isinstance(effect, Disconnect):
            (self._clients.disconnect if effect.peer[:1] == PREFIX else self.streams.hang_up)(effect.peer)
        elif isinstance(effect, Pause):
            self.streams.pause(effect.peer, effect.until)
        elif isinstance(effect, SaveSession):
            self._saved(self._session_list.append(effect.record))
        elif isinstance(effect, Audit):
            self._audit.write(effect, self._describe(effect.peer))
        elif isinstance(effect, Discard):
            self._discard(Path(effect.path))
        elif isinstance(effect, RemoveEnvironment):
            self._launcher.remove_environment(effect.environment)
        elif isinstance(effect, RereadConfig):
            self._reload(effect.peer, effect.request_id)
        elif isinstance(effect, LookAtMemory):
            self._do(self._core.machine_seen(self._machine_memory.look(), time.monotonic()))
        elif isinstance(effect, Note):
            log(effect.text)
        elif isinstance(effect, Exit):
            self._exit = effect.why

    @staticmethod
    def _discard(file: Path) -> None:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            log(f"a snapshot is left behind: {file}: {error.strerror}")

    def _hang_up(self, peer: bytes, *, at_once: bool = True) -> None:
        (self._clients if peer[:1] == PREFIX else self.streams).hang_up(peer, at_once=at_once)

    def _describe(self, peer: bytes) -> str:
        """Who a peer is, for the audit. Nobody stands behind what the broker did by itself."""
        return (self._clients if peer[:1] == PREFIX else self.streams).describe(peer) if peer else BROKER

    def _saved(self, trouble: str | None) -> None:
        if trouble is not None and not self._unsaved:
            log(f"the list of sessions cannot be kept: {trouble}")
        self._unsaved = trouble is not None

    def _signalled(self, signals: Signals) -> None:
        for number in signals.take():
            if number == signal.SIGCHLD:
                self._launcher.sweep()
            elif number == signal.SIGHUP and not signals.from_terminal:
                self._reload(None, "")
            elif self._core.state.draining:
                self._exit = f"a second {signal.Signals(number).name}"
            else:
                self._do(self._core.drain(signal.Signals(number).name, time.monotonic()))

    def _reload(self, peer: bytes | None, request_id: str) -> None:
        """Read the config file again, for a request or a signal."""
        reread = self._reloading.again()
        if reread.live is not None:
            self._launcher.know(reread.live.identities)
        self._do(self._core.reread(reread, peer, request_id, time.monotonic()))

    def close(self) -> None:
        """Kill every worker, then let clients go: who waits for our end must not see it before it has come."""
        self._workers.close()
        self._launcher.close(deadline_s=5.0)
        self._audit.close()
        if self._hooks is not None:
            self._hooks.close()
        for watcher in self._watchers:
            watcher.close()
        self.streams.close()
        self._clients.close(_LINGER_MS)
        self._zap.close()
        if self._key_watch is not None:
            self._key_watch.close()
        self._epoll.close()


def log(text: str) -> None:
    """A line in the broker's log, which is its stderr; further lines are indented, so that no text of others can look
    like one of ours. A log that cannot be written must not stop the broker."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    try:
        sys.stderr.write(f"{stamp} {escape_lines(text.rstrip(chr(10)), '  ')}\n")
        sys.stderr.flush()
    except OSError:
        pass

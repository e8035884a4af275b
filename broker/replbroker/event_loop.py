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

from replbroker.broker_extensions import BrokerExtensions
from replbroker.config_reload import ConfigReload
from replbroker.core.effects import (
    Audit,
    CloseConnection,
    DeleteEnvironment,
    DeleteSnapshot,
    Disconnect,
    Effect,
    Kill,
    Log,
    MeasureMemory,
    PauseReading,
    PublishEvent,
    RereadConfig,
    RunHooks,
    SaveSession,
    Spawn,
    StopBroker,
    ToClient,
    ToWorker,
)
from replbroker.core.engine import BrokerCore
from replbroker.core.observing.audit_trail import BROKER
from replbroker.file_watch import FileWatch
from replbroker.guarded_steps import GuardedSteps
from replbroker.launch.launcher import Launcher
from replbroker.launch.machine_memory import MachineMemoryReader
from replbroker.session_list import SessionListFile
from replbroker.signals import Signals
from replbroker.sinks.audit_file import AuditFile
from replbroker.sinks.event_sink import EventSink
from replbroker.transports.client_router import PREFIX, RETRY_S, ClientRouter
from replbroker.transports.line_server import LineServer
from replbroker.transports.worker_router import WorkerRouter
from replbroker.transports.zap import ZapAuthenticator
from replwire.deadlines import GapDetector
from replwire.limits import Limits
from replwire.terminal import escape_lines

_POLLIN = int(zmq.POLLIN)
_MAX_SLEEP_S = 3600.0  # the longest sleep
_MAX_SLEEP_RUNNING_S = 1.0  # the longest while evals run: a suspend within a sleep is known as exactly as this
_EVENT_DELAY_S = 0.01  # how long an event may wait for others
_EVENT_BATCH = 100  # effects of events between two looks at what has come in
_MAX_PENDING_EVENTS = 10_000  # of them that wait: a tenth of a second
_LINGER_MS = 1_000  # for the last answers of a broker that ends


class BrokerLoop:
    """One thread, one wait."""

    def __init__(
        self,
        core: BrokerCore,
        clients: ClientRouter,
        workers: WorkerRouter,
        zap: ZapAuthenticator,
        launcher: Launcher,
        machine_memory: MachineMemoryReader,
        reloading: ConfigReload,
        session_list: SessionListFile,
        audit: AuditFile,
        new_token: Callable[[], str],
        sinks: Sequence[EventSink],
        extending: BrokerExtensions,
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
        self._new_token = new_token
        self._sinks = sinks
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._exit: str | None = None
        self._workers_drained_at = time.monotonic()  # nothing was left then that a worker had said
        self._key_watch: FileWatch | None = None
        self._is_save_failing = False
        self._flush_events_at: float | None = None
        clients.handler = self
        self._register(clients.monitor_fd, clients.read_monitor)
        self._register(zap.socket.fileno(), zap.answer_requests)
        self.line_server = LineServer(self, limits.max_message_bytes)
        self._register(self.line_server.fileno(), lambda: self.line_server.process(time.monotonic()))
        launcher.register_descriptors(self._register, self._unregister)
        for watcher in sinks:
            watcher.register_descriptors(self._register, self._unregister)
        self._steps = self._build_steps()
        self._hooks = extending.attach(core, limits, self._apply)
        if self._hooks is not None:
            self._hooks.register_descriptors(self._register)

    def _build_steps(self) -> GuardedSteps:
        """Build the steps that are taken when they are due, in their order."""
        steps = GuardedSteps(log)
        steps.add(lambda: self.line_server.due, self.line_server.process)
        steps.add(self._core.next_deadline, lambda now: self._apply(self._core.tick(now, self._workers_drained_at)))
        steps.add(lambda: self._flush_events_at, lambda _: self._flush_events())
        steps.add(lambda: self._clients.due, self._clients.flush)
        steps.add(lambda: self._audit.due, self._audit.flush)
        for watcher in self._sinks:
            steps.add(partial(getattr, watcher, "due"), watcher.flush)
        return steps

    def restore(self) -> list[str]:
        """Take over what a broker before this one saved; the sessions that were lost with it."""
        saved, damage = self._session_list.read_previous()
        if damage is not None:
            log(f"the list of sessions cannot be read, epochs begin at {saved.floor + 1}: {damage}")
        lost = self._core.restore(saved)
        self._on_saved(self._session_list.start(self._core.saved_sessions))
        return lost

    def watch_keys(self, directories: Sequence[Path]) -> None:
        """Have keys and tokens that are taken back take hold at once; without, each request of theirs looks."""
        try:
            watch = FileWatch()
        except OSError as error:
            log(f"a key that is taken back ends what waits for answers within seconds, not at once: {error.strerror}")
            return
        self._key_watch = watch

        def changed() -> None:
            watch.take_changed()
            look()
            self._apply(self._core.on_identities_changed(time.monotonic()))

        def look() -> None:
            for folder in directories:
                watch.add(folder)

        look()
        self._register(watch.fd, changed)

    def _register(self, fd: int, handler: Callable[[], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _unregister(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    def run(self, signals: Signals) -> str:
        """Serve until the core says Exit; returns why."""
        self._register(signals.fd, lambda: self._handle_signals(signals))
        self._clients.read_monitor()  # a descriptor of ZeroMQ tells nothing before it was asked
        self._apply(self._core.start(time.monotonic()))
        clients, workers = self._clients.socket, self._workers.socket
        # libzmq tells of messages at edges, and what it takes in while sending it does not tell at all; its own
        # poll knows. Everything that is not hot stands behind the one descriptor of the epoll.
        items: Any = [(workers, _POLLIN), (clients, _POLLIN), (self._epoll.fileno(), _POLLIN)]
        gaps = GapDetector(time.monotonic(), time.thread_time())
        while self._exit is None:
            wait_ms = self._timeout_ms()
            gaps.before_sleep(wait_ms / 1000, time.monotonic(), time.thread_time())
            come = zmq.zmq_poll(items, wait_ms)
            if gap := gaps.after_sleep(time.monotonic(), time.thread_time()):
                self._core.on_suspended(gap)
            if not come or come[0][0] is not workers:
                self._workers_drained_at = time.monotonic()
            for ready, _ in come:
                if ready is workers:
                    self._steps.run(self._receive_from_worker)
                elif ready is clients:
                    self._steps.run(self._receive_from_client)
                else:
                    self._steps.run(self._poll_descriptors)
            if self._clients.has_backlog:
                self._steps.run(self._retry)
            self._steps.run_due(time.monotonic())
        self._apply(self._core.flush_events())
        return self._exit

    def _retry(self) -> None:
        for peer in self._clients.retry():
            self._on_unreachable(peer)

    def _timeout_ms(self) -> int:
        due = self._steps.next_due()
        longest = _MAX_SLEEP_RUNNING_S if self._core.has_running_evals else _MAX_SLEEP_S
        wait = longest if due is None else min(longest, max(0.0, due - time.monotonic()))
        return math.ceil(1000 * (min(wait, RETRY_S) if self._clients.has_backlog else wait))

    def _receive_from_worker(self) -> None:
        if (heard := self._workers.receive()) is not None:
            self._apply(self._core.handle_worker_frame(*heard, time.monotonic()))

    def _receive_from_client(self) -> None:
        if (heard := self._clients.receive()) is not None:
            self.handle_request(*heard)

    # --- what transports tell ---

    def on_connect(self, peer: bytes, identity: str, groups: tuple[int, ...] = ()) -> bytes | None:
        """A connection was made."""
        refusal = self._core.on_connect(peer, identity, time.monotonic(), groups)
        self._apply(self._core.take_effects())
        return refusal

    def on_identified(self, peer: bytes, identity: str) -> None:
        """A connection has shown a key."""
        self._core.on_identified(peer, identity)

    def on_message_after_close(self, peer: bytes, identity: str) -> None:
        """What comes from this peer was said by a connection that has ended."""
        self._core.set_identity(peer, identity)

    def has_room(self, peer: bytes) -> bool:
        """Whether a connection that was one too many is not any more."""
        return self._core.has_room(peer)

    def on_rejected(self, peer: bytes, why: str) -> None:
        """Nothing of this connection is to be done."""
        self._core.reject_peer(peer, why)

    def handle_request(self, peer: bytes, body: bytes) -> None:
        """A request came. One that there is no memory for ends its connection: it can be answered in no other way."""
        try:
            effects = self._core.handle_request(peer, body, time.monotonic())
        except MemoryError:
            self._hang_up(peer)
            raise
        self._apply(effects)

    def has_pending(self, peer: bytes) -> bool:
        """Whether a client still waits for answers."""
        return self._core.has_pending(peer)

    def on_disconnect(self, peer: bytes) -> None:
        """A connection has ended."""
        self._apply(self._core.on_disconnect(peer, time.monotonic()))

    # --- the loop's steps ---

    def _on_unreachable(self, peer: bytes) -> None:
        self._apply(self._core.on_unreachable(peer, time.monotonic()))

    def _poll_descriptors(self) -> None:
        for fd, _ in self._epoll.poll(0):
            handler = self._handlers.get(fd)
            if handler is not None:
                self._steps.run(handler)
        for worker, cause in self._launcher.take_exited():
            self._workers.forget(worker)
            self._apply(self._core.handle_worker_exit(worker, cause, time.monotonic()))
        for environment, error in self._launcher.take_removed_environments():
            self._apply(self._core.on_environment_removed(environment, error, time.monotonic()))

    def _apply(self, effects: list[Effect]) -> None:
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
                    transport = self._clients if effect.peer[:1] == PREFIX else self.line_server
                    if not transport.send(effect.peer, effect.body, effect.output_of, before, effect.event):
                        self._on_unreachable(effect.peer)
                    before = None
                elif kind is ToWorker:
                    self._workers.send(effect.worker, effect.frame)  # type: ignore[union-attr]
                elif kind is PublishEvent:
                    now = time.monotonic()
                    for watcher in self._sinks:
                        watcher.on_event(effect, now)  # type: ignore[arg-type]
                elif kind is Kill:
                    dying.append(effect.worker)  # type: ignore[union-attr]
                else:
                    self._apply_rare(effect)
            except (OSError, MemoryError) as error:  # the effects after it are of others
                self._steps.failed(error)
                before = None
                if isinstance(effect, ToClient):  # else it would wait for an answer that never comes
                    self._hang_up(effect.peer)
        self._steps.run(self.line_server.close_finished)
        # Last: to take a process apart keeps the machine busy, and the fresh one is to be on its way by then.
        for worker in dying:
            self._workers.forget(worker)
            self._steps.run(partial(self._launcher.kill, worker))
        if self._flush_events_at is None and self._core.pending_events:
            self._flush_events_at = time.monotonic() + _EVENT_DELAY_S

    def _flush_events(self) -> None:
        """Hand on what happened: some evals of it at once, for that costs a third of one by one; to some of many
        readers, so that no answer waits for all of them."""
        self._apply(self._core.flush_events(_EVENT_BATCH))
        while self._core.pending_events > _MAX_PENDING_EVENTS:  # more happens than can be told, so it has to wait
            self._apply(self._core.flush_events(_EVENT_BATCH))
        self._flush_events_at = time.monotonic() if self._core.pending_events else None

    def _apply_rare(self, effect: Effect) -> None:
        if isinstance(effect, Spawn):
            token = self._new_token()
            self._workers.expect(effect.worker, token)
            self._launcher.spawn(effect.worker, effect.spec, token)
        elif isinstance(effect, RunHooks):
            assert self._hooks is not None, "the core asks no hooks where there are none"
            self._hooks.submit(effect)
        elif isinstance(effect, CloseConnection):
            self._hang_up(effect.peer, at_once=effect.at_once)
        elif isinstance(effect, Disconnect):
            (self._clients.disconnect if effect.peer[:1] == PREFIX else self.line_server.hang_up)(effect.peer)
        elif isinstance(effect, PauseReading):
            self.line_server.pause(effect.peer, effect.until)
        elif isinstance(effect, SaveSession):
            self._on_saved(self._session_list.append(effect.record))
        elif isinstance(effect, Audit):
            self._audit.write(effect, self._describe_peer(effect.peer))
        elif isinstance(effect, DeleteSnapshot):
            self._delete_snapshot(Path(effect.path))
        elif isinstance(effect, DeleteEnvironment):
            self._launcher.remove_environment(effect.environment)
        elif isinstance(effect, RereadConfig):
            self._reload(effect.peer, effect.request_id)
        elif isinstance(effect, MeasureMemory):
            self._apply(self._core.on_memory_measured(self._machine_memory.read(), time.monotonic()))
        elif isinstance(effect, Log):
            log(effect.text)
        elif isinstance(effect, StopBroker):
            self._exit = effect.why

    @staticmethod
    def _delete_snapshot(file: Path) -> None:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            log(f"a snapshot is left behind: {file}: {error.strerror}")

    def _hang_up(self, peer: bytes, *, at_once: bool = True) -> None:
        (self._clients if peer[:1] == PREFIX else self.line_server).hang_up(peer, at_once=at_once)

    def _describe_peer(self, peer: bytes) -> str:
        """Who a peer is, for the audit. Nobody stands behind what the broker did by itself."""
        return (self._clients if peer[:1] == PREFIX else self.line_server).describe(peer) if peer else BROKER

    def _on_saved(self, trouble: str | None) -> None:
        if trouble is not None and not self._is_save_failing:
            log(f"the list of sessions cannot be kept: {trouble}")
        self._is_save_failing = trouble is not None

    def _handle_signals(self, signals: Signals) -> None:
        for number in signals.take():
            if number == signal.SIGCHLD:
                self._launcher.reap_orphans()
            elif number == signal.SIGHUP and not signals.from_terminal:
                self._reload(None, "")
            elif self._core.is_draining:
                self._exit = f"a second {signal.Signals(number).name}"
            else:
                self._apply(self._core.drain(signal.Signals(number).name, time.monotonic()))

    def _reload(self, peer: bytes | None, request_id: str) -> None:
        """Read the config file again, for a request or a signal."""
        reread = self._reloading.reload()
        if reread.live is not None:
            self._launcher.set_identities(reread.live.identities)
        self._apply(self._core.on_config_reread(reread, peer, request_id, time.monotonic()))

    def close(self) -> None:
        """Kill every worker, then let clients go: who waits for our end must not see it before it has come."""
        self._workers.close()
        self._launcher.close(deadline_s=5.0)
        self._audit.close()
        if self._hooks is not None:
            self._hooks.close()
        for watcher in self._sinks:
            watcher.close()
        self.line_server.close()
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

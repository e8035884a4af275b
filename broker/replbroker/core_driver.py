"""Drives the core: passes messages in, and carries out the effects that come back."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from replbroker.broker_extensions import BrokerExtensions
from replbroker.config_reload import ConfigReload
from replbroker.core.effects import (
    Audit,
    CloseConnection,
    DeleteEnvironment,
    DeletePackages,
    DeleteSnapshot,
    Disconnect,
    Effect,
    EndOperation,
    Kill,
    LeaveWorker,
    Log,
    MeasureMemory,
    PauseReading,
    PublishEvent,
    RereadConfig,
    RunHooks,
    RunOperation,
    SaveRecords,
    Spawn,
    StartBranch,
    StartEgress,
    StopBroker,
    ToClient,
    ToWorker,
    WriteSnapshot,
)
from replbroker.core.engine import BrokerCore
from replbroker.core.observing.audit_trail import BROKER
from replbroker.core.records import SavedState, WorkerRecord
from replbroker.guarded_steps import GuardedSteps
from replbroker.hook_runner import HookFailure, HookRunner
from replbroker.journal import Journal
from replbroker.launch.launcher import Launcher
from replbroker.launch.machine_memory import MachineMemoryReader
from replbroker.operation_runner import OperationRunner
from replbroker.signals import Signals
from replbroker.sinks.audit_file import AuditFile
from replbroker.sinks.event_sink import EventSink
from replbroker.snapshot_files import SnapshotFiles, delete_snapshot
from replbroker.transports.connection_handler import Body, ReplyTransport
from replbroker.transports.worker_router import WorkerRouter, digest_of
from replwire.link import BranchBody, FrameKind, encode, pack

_EVENT_DELAY_S = 0.01  # how long an event may wait for others: flushed together they cost a third
_EVENT_BATCH = 100  # event effects between two looks at what has come in
_MAX_PENDING_EVENTS = 10_000  # event effects that may wait: about a tenth of a second of work
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EffectTargets:
    """Parts of the broker that effects act on, beside the transports."""

    workers: WorkerRouter
    launcher: Launcher
    sinks: Sequence[EventSink]
    audit: AuditFile
    journal: Journal
    config_reload: ConfigReload
    memory: MachineMemoryReader
    extensions: BrokerExtensions
    hooks: HookRunner | None
    operations: OperationRunner
    snapshots: SnapshotFiles


class CoreDriver:
    """The connection handler of every transport, and the one place that carries out effects.

    Args:
        core: The core.
        targets: What effects act on.
        steps: Guards against a lack of memory or descriptors.

    Attributes:
        exit_reason: Why the broker is to end; None while it runs.
        is_restarting: Whether its process begins again then.
        has_left_sessions: Whether workers stay, for the next broker.
    """

    def __init__(self, core: BrokerCore, targets: EffectTargets, steps: GuardedSteps) -> None:
        self._core = core
        self._targets = targets
        self._steps = steps
        self._transports: dict[bytes, ReplyTransport] = {}
        self._is_save_failing = False
        self._flush_events_at: float | None = None
        self.exit_reason: str | None = None
        self.is_restarting = self.has_left_sessions = False
        # The hot effects are in `apply`.
        self._handlers: dict[type[Any], Callable[[Any], object]] = {
            ToWorker: lambda effect: targets.workers.send(effect.worker, effect.frame),
            PublishEvent: self._publish,
            Spawn: self._spawn,
            StartBranch: self._start_branch,
            LeaveWorker: self._leave_worker,
            RunHooks: self._run_hooks,
            RunOperation: lambda effect: targets.operations.start(effect),
            EndOperation: lambda effect: targets.operations.end(effect.number),
            CloseConnection: lambda effect: self._transport(effect.peer).hang_up(effect.peer, at_once=effect.at_once),
            Disconnect: lambda effect: self._transport(effect.peer).disconnect(effect.peer),
            PauseReading: lambda effect: self._transport(effect.peer).pause(effect.peer, effect.until),
            SaveRecords: lambda effect: self._on_saved(targets.journal.append(effect.records)),
            Audit: lambda effect: targets.audit.write(effect, self._describe_peer(effect.peer)),
            WriteSnapshot: self._write_snapshot,
            DeleteSnapshot: lambda effect: delete_snapshot(effect.path),
            DeleteEnvironment: lambda effect: targets.launcher.remove_environment(effect.environment),
            StartEgress: lambda _: targets.launcher.start_egress(),
            DeletePackages: lambda effect: targets.launcher.remove_packages(effect.session),
            RereadConfig: lambda effect: self._reload_config(effect.peer, effect.request_id),
            MeasureMemory: self._measure_memory,
            Log: lambda effect: _log.info("%s", effect.text),
            StopBroker: self._stop,
        }

    def add_transport(self, transport: ReplyTransport) -> None:
        """Send effects for this transport's peers to it."""
        self._transports[transport.prefix] = transport

    # --- the broker's life ---

    def restore(self, saved: SavedState) -> list[str]:
        """Take over the sessions and workers of the previous broker, before anybody can connect.

        Args:
            saved: What it has saved.

        Returns:
            Names of the sessions that were lost with it.
        """
        launcher, workers = self._targets.launcher, self._targets.workers
        with_session = {each.details.worker for each in saved.sessions if each.open and each.details is not None}
        wanted = {each.process_number for each in saved.workers if each.worker in with_session}
        adopted = {
            each.worker
            for each in saved.workers
            if each.handle and launcher.adopt(each.worker, each.handle, keep=each.worker in wanted)
        }
        alive = [each for each in saved.workers if each.process_number in adopted]
        for record in alive:
            if record.token:
                workers.expect(record.worker, record.token)
        lost = self._core.restore(saved, frozenset(each.worker for each in alive), time.monotonic())
        self._on_saved(self._targets.journal.start(self._core.export, alive, self._core.export_keys))
        launcher.remove_closed_packages()
        launcher.remove_stored(self._core.stored_files())
        self._targets.snapshots.remove_unused(self._core.stored_files())
        return lost

    def start(self) -> None:
        """Start the core."""
        self.apply(self._core.start(time.monotonic()))

    def tick(self, now: float, workers_read_at: float) -> None:
        """Run the core's deadlines that are due.

        Args:
            now: Monotonic time.
            workers_read_at: When no frame of a worker was left to read.
        """
        self.apply(self._core.tick(now, workers_read_at))

    def handle_signals(self, signals: Signals) -> None:
        """Handle the signals that have arrived."""
        for number in signals.take():
            if number == signal.SIGCHLD:
                self._targets.launcher.reap_orphans()
            elif number == signal.SIGHUP and not signals.from_terminal:
                self._reload_config(None, "")
            elif self._core.is_draining:
                self.exit_reason = f"a second {signal.Signals(number).name}"
            else:
                name, keep = signal.Signals(number).name, number == signal.SIGTERM
                self.apply(self._core.drain(name, time.monotonic(), keep_sessions=keep))

    def on_lease_end(self) -> None:
        """End the broker, because the program that started it has ended."""
        self.apply(self._core.drain("standard input was closed", time.monotonic()))

    def handle_worker_frame(self, worker: int, frame: bytes) -> None:
        """Pass a worker's frame to the core."""
        self.apply(self._core.handle_worker_frame(worker, frame, time.monotonic()))

    def handle_launcher_results(self) -> None:
        """Tell the core of workers that have exited and of environments that were removed."""
        for worker, handle in self._targets.launcher.take_started():
            if (token := self._targets.workers.token_digest(worker)) is not None:
                self._on_saved(self._targets.journal.set_worker(WorkerRecord(worker, token, handle)))
        for worker, cause in self._targets.launcher.take_exited():
            self._forget_process(worker)
            self.apply(self._core.handle_worker_exit(worker, cause, time.monotonic()))
        for record in self._targets.launcher.take_traffic():
            self.apply(self._core.on_traffic(record, time.monotonic()))
        for environment, error in self._targets.launcher.take_removed_environments():
            self.apply(self._core.on_environment_removed(environment, error, time.monotonic()))

    def _forget_process(self, process: int) -> None:
        """Ignore from now on what a process sends, and drop it from the journal."""
        served = self._targets.journal.served_by(process)
        for worker in {process, *served}:
            self._targets.workers.forget(worker)
        self._on_saved(self._targets.journal.remove_workers(served))

    def handle_hook_outcomes(self) -> None:
        """Tell the core of the hooks' verdicts."""
        assert self._targets.hooks is not None, "outcomes come from hooks"
        for outcome in self._targets.hooks.take_outcomes():
            self._report_failures(outcome.failures)
            request, verdict = outcome.request, outcome.verdict
            self.apply(self._core.handle_verdict(outcome.route, request, verdict, outcome.hook, time.monotonic()))

    def on_identities_changed(self) -> None:
        """Tell the core that keys or tokens were added or withdrawn."""
        self.apply(self._core.on_identities_changed(time.monotonic()))

    # --- ConnectionHandler ---

    def on_connect(self, peer: bytes, identity: str, groups: tuple[int, ...] = ()) -> bytes | None:
        refusal = self._core.on_connect(peer, identity, time.monotonic(), groups)
        self.apply(self._core.take_effects())
        return refusal

    def on_identified(self, peer: bytes, identity: str) -> None:
        self._core.on_identified(peer, identity)

    def on_message_after_close(self, peer: bytes, identity: str) -> None:
        self._core.set_identity(peer, identity)

    def has_room(self, peer: bytes) -> bool:
        return self._core.has_room(peer)

    def on_rejected(self, peer: bytes, why: str) -> None:
        self._core.reject_peer(peer, why)

    def handle_request(self, peer: bytes, body: bytes) -> None:
        try:
            effects = self._core.handle_request(peer, body, time.monotonic())
        except MemoryError:  # no reply can be built either
            self._transport(peer).hang_up(peer, at_once=True)
            raise
        self.apply(effects)

    def has_pending(self, peer: bytes) -> bool:
        return self._core.has_pending(peer)

    def on_disconnect(self, peer: bytes) -> None:
        self.apply(self._core.on_disconnect(peer, time.monotonic()))

    def on_unreachable(self, peer: bytes) -> None:
        self.apply(self._core.on_unreachable(peer, time.monotonic()))

    # --- effects ---

    def apply(self, effects: list[Effect]) -> None:
        """Carry out effects in order, but kill workers last.

        Taking a process apart keeps the machine busy, and a replacement worker should be on its way by then.
        """
        first: Body | None = None
        kills: list[int] = []
        for effect in effects:
            kind = type(effect)
            try:
                if kind is ToClient:
                    assert isinstance(effect, ToClient)
                    if effect.more:
                        first = effect.body
                        continue
                    transport = self._transports[effect.peer[:1]]
                    if not transport.send(effect.peer, effect.body, effect.output_of, first, effect.event):
                        self.on_unreachable(effect.peer)
                    first = None
                elif kind is Kill:
                    kills.append(effect.worker)  # type: ignore[union-attr]
                else:
                    self._handlers[kind](effect)
            except (OSError, MemoryError) as error:  # the next effects concern others
                self._steps.on_failure(error)
                first = None
                if isinstance(effect, ToClient):  # or it would wait for a reply that never comes
                    self._transport(effect.peer).hang_up(effect.peer, at_once=True)
        for worker in kills:
            self._steps.run(partial(self._targets.launcher.kill, worker))
            self._forget_process(worker)
        if self._flush_events_at is None and self._core.pending_events:
            self._flush_events_at = time.monotonic() + _EVENT_DELAY_S
        if self._targets.extensions.has_failures:
            self._report_failures(self._targets.extensions.take_failures())

    @property
    def due(self) -> float | None:
        """Monotonic time at which `flush` should be called."""
        return self._flush_events_at

    def flush(self, now: float) -> None:  # noqa: ARG002
        """Deliver some of the events that wait; all but a few when too many do."""
        self.apply(self._core.flush_events(_EVENT_BATCH))
        while self._core.pending_events > _MAX_PENDING_EVENTS:  # more happens than can be delivered: replies wait
            self.apply(self._core.flush_events(_EVENT_BATCH))
        self._flush_events_at = time.monotonic() if self._core.pending_events else None

    def flush_all_events(self) -> None:
        """Deliver every event that waits."""
        self.apply(self._core.flush_events())

    def _transport(self, peer: bytes) -> ReplyTransport:
        return self._transports[peer[:1]]

    def _publish(self, event: PublishEvent) -> None:
        now = time.monotonic()
        for sink in self._targets.sinks:
            sink.on_event(event, now)

    def _spawn(self, effect: Spawn) -> None:
        token = self._targets.workers.create_token(effect.worker)
        self._targets.launcher.spawn(effect.worker, effect.spec, token)

    def _start_branch(self, effect: StartBranch) -> None:
        token = self._targets.workers.create_token(effect.worker)
        record = WorkerRecord(effect.worker, digest_of(token), process=effect.process)
        self._on_saved(self._targets.journal.set_worker(record))
        body = encode(BranchBody(token, effect.checkpoint))
        self._targets.workers.send(effect.source, pack(FrameKind.BRANCH, body))

    def _leave_worker(self, effect: LeaveWorker) -> None:
        if self._targets.workers.send(effect.worker, pack(FrameKind.LEAVE)):
            self._targets.workers.forget(effect.worker)
            self._on_saved(self._targets.journal.leave_worker(effect.worker))
        # Otherwise it has not connected to this broker yet, and the core answers its HELLO with this effect again.

    def _run_hooks(self, effect: RunHooks) -> None:
        assert self._targets.hooks is not None, "the core asks for hooks only where some are configured"
        self._targets.hooks.submit(effect)

    def _report_failures(self, failures: Sequence[HookFailure]) -> None:
        for registration, error in failures:
            contribution = f"{registration.contribution.kind} {registration.contribution.name}"
            self.apply(self._core.on_extension_failed(registration.owner, contribution, error, time.monotonic()))

    def _measure_memory(self, _: MeasureMemory) -> None:
        self.apply(self._core.on_memory_measured(self._targets.memory.read(), time.monotonic()))

    def _write_snapshot(self, effect: WriteSnapshot) -> None:
        error = self._targets.snapshots.append(effect.snapshot, effect.data)
        path = self._targets.snapshots.path_of(effect.snapshot)
        self.apply(self._core.on_snapshot_written(effect, path, error, time.monotonic()))

    def _stop(self, effect: StopBroker) -> None:
        self._targets.launcher.release(effect.keep)
        self.has_left_sessions = bool(effect.keep)
        self.exit_reason, self.is_restarting = effect.why, effect.restart

    def _describe_peer(self, peer: bytes) -> str:
        """Return the client column of the audit: the broker itself where no peer asked."""
        return self._transport(peer).describe(peer) if peer else BROKER

    def _on_saved(self, error: str | None) -> None:
        if error is not None and not self._is_save_failing:
            _log.warning("the journal cannot be written, sessions would not outlive the broker: %s", error)
        self._is_save_failing = error is not None

    def _reload_config(self, peer: bytes | None, request_id: str) -> None:
        result = self._targets.config_reload.reload()
        if result.live is not None:
            self._targets.launcher.set_identities(result.live.identities)
            self._targets.launcher.set_hosts(result.live.hosts)
        self.apply(self._core.on_config_reread(result, peer, request_id, time.monotonic()))

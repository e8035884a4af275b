"""The core's entry points: each takes what clients, workers and the shell report, and returns effects.

The core has no socket, clock, process or randomness of its own: the same calls give the same effects, so tests can
simulate it.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from replbroker.core.admission.admission import Admission
from replbroker.core.admission.version_notice import send_version_notice
from replbroker.core.config import CoreConfig
from replbroker.core.effects import Effect, Log, Peer, SaveRecords, WriteSnapshot
from replbroker.core.limits.memory_totals import AvailableMemory
from replbroker.core.maintenance import Maintenance
from replbroker.core.operations.broker_metrics import BrokerMetrics, read_metrics
from replbroker.core.operations.dispatcher import OperationDispatcher
from replbroker.core.operations.extension_ops import OperationOutcome
from replbroker.core.operations.restore import Restoration, export_keys, export_state
from replbroker.core.operations.settings_reload import RereadResult, apply_reload
from replbroker.core.operations.traffic import observe_traffic
from replbroker.core.records import KeyHistory, Record, SavedState
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.scheduling.memory_pressure import MemoryPressure
from replbroker.core.scheduling.worker_protocol import SnapshotReady, WorkerProtocol
from replbroker.core.state import BrokerState
from replwire.events import BrokerStarted, ExtensionError, ExtensionLoaded, LogError
from replwire.ext.verdicts import HookRequest, Verdict
from replwire.faults import RequestError, clip
from replwire.limits import Limits
from replwire.network import TrafficRecord
from replwire.ops import Hibernate
from replwire.requests import parse, to_request, unknown_fields


class BrokerCore:
    """The decisions of one broker. `now` is always in monotonic seconds."""

    def __init__(self, config: CoreConfig) -> None:
        self.state = BrokerState(config)
        self.scheduler = EvalScheduler(self.state)
        self._admission = Admission(self.state, self.scheduler.teardown)
        self._operations = OperationDispatcher(self.state, self.scheduler)
        self._memory_pressure = MemoryPressure(self.state, self.scheduler.teardown)
        self._worker_protocol = WorkerProtocol(self.state, self.scheduler, self._memory_pressure)
        operations = self._operations
        self._maintenance = Maintenance(
            self.state, self.scheduler, self._admission, operations.shutdown, operations.hibernation
        )
        self._version = dict(config.versions).get("replctl", "")

    def start(self, now: float) -> list[Effect]:
        """Start warm workers and the sweep."""
        self.state.last_request = self.state.clock.now = now
        self._maintenance.start(now)
        self._emit_started()
        self._memory_pressure.start()
        self.scheduler.pool.refill(now)
        return self._finish_call(now)

    def _emit_started(self) -> None:
        config, defaults = self.state.config, msgspec.to_builtins(Limits())
        changed = {name: value for name, value in msgspec.to_builtins(config.limits).items() if value != defaults[name]}
        self.state.bus.emit(BrokerStarted, version=self._version, runtimes=list(config.runtimes), limits=changed)

    # --- what outlives a broker ---

    def restore(self, saved: SavedState, alive: Collection[int], now: float) -> list[str]:
        """Take over the sessions of the broker before this one; see `Restoration`.

        Args:
            saved: What it has saved.
            alive: The numbers of its workers that are alive.
            now: Seconds, monotonic.

        Returns:
            The sessions that were lost, as the broker's own user calls them.
        """
        self.state.clock.now = now
        return Restoration(self.state, self.scheduler).restore(saved, alive, now)

    def stored_files(self) -> frozenset[str]:
        """Return the files with variables that sessions have yet to get: hibernated ones, and those that begin."""
        sources = [source for each in self.state.sessions for source in (each.hibernated, each.snapshot)]
        return frozenset(source.path for source in sources if source is not None)

    def export(self) -> tuple[int, list[Record]]:
        """Return everything that a broker after this one needs: the floor of epochs, and records."""
        return export_state(self.state)

    def export_keys(self) -> KeyHistory:
        """Return which idempotency keys are among the records of `export`."""
        return export_keys(self.state)

    # --- views for the shell ---

    @property
    def has_running_evals(self) -> bool:
        """True if an eval has a slot."""
        return self.state.semaphore.in_use > 0

    @property
    def is_draining(self) -> bool:
        """True once the broker is told to end."""
        return self.state.draining

    @property
    def config(self) -> CoreConfig:
        """The settings in force."""
        return self.state.config

    def read_metrics(self) -> BrokerMetrics:
        """Return the current metrics, for exporters."""
        return read_metrics(self.state, self.scheduler.pool)

    def add_introspector(self, name: str, take_snapshot: Callable[[], Any]) -> None:
        """Add a part of the shell to `introspect`."""
        self.state.introspectors[name] = take_snapshot

    def set_problems(self, problems: list[str]) -> None:
        """Set the problems of the broker's own directories and sockets, for `stats`."""
        self.state.problems = problems

    def set_published_types(self, types: frozenset[str]) -> None:
        """Set the ephemeral event types that readers outside want."""
        self.state.bus.set_published_types(types)

    # --- connections ---

    def has_identity(self, peer: Peer) -> bool:
        """Return whether `set_identity` was called for a peer."""
        return self.state.access.is_registered(peer)

    def set_identity(self, peer: Peer, identity: str) -> None:
        """Set the identity of a peer before its first request, as the transport vouches for it."""
        self.state.access.register(peer, identity)

    def on_connect(self, peer: Peer, identity: str, now: float, groups: tuple[int, ...] = ()) -> bytes | None:
        """Handle a new connection.

        Args:
            peer: The connection.
            identity: The identity that the transport vouches for.
            now: Seconds, monotonic.
            groups: The groups of a local process.

        Returns:
            The error for a connection without room, for a transport that can send it before any request.
        """
        return self._admission.on_connect(peer, identity, now, groups)

    def on_identified(self, peer: Peer, identity: str) -> None:
        """Handle that a connection has shown a key."""
        self._admission.on_identified(peer, identity)

    def reject_peer(self, peer: Peer, why: str) -> None:
        """Refuse every request of a connection with this sentence."""
        self.state.connections.reject(peer, RequestError("unauthorized", why))

    def has_room(self, peer: Peer) -> bool:
        """Return whether there is, or is now, room for a connection."""
        return self.state.connections.has_room(peer)

    def has_pending(self, peer: Peer) -> bool:
        """Return whether a request of this peer has no final reply yet."""
        return self._admission.has_pending(peer)

    def on_disconnect(self, peer: Peer, now: float) -> list[Effect]:
        """Handle the end of a connection."""
        self.state.connections.close(peer)
        return self.on_unreachable(peer, now)

    def on_unreachable(self, peer: Peer, now: float) -> list[Effect]:
        """Handle that nothing can be sent to a client any more. Its evals in sessions go on."""
        self.state.clock.now = now
        self._admission.on_unreachable(peer, now)
        return self._finish_call(now)

    def on_identities_changed(self, now: float) -> list[Effect]:
        """Handle that keys or tokens were added or removed: clients with a removed one get nothing more."""
        self.state.clock.now = now
        self._admission.revoke(self.state.access.find_revoked())
        return self._finish_call(now)

    # --- requests ---

    def handle_request(self, peer: Peer, body: bytes, now: float) -> list[Effect]:
        """Handle one request.

        Args:
            peer: The connection that it came on.
            body: The request as it came.
            now: Seconds, monotonic.
        """
        state = self.state
        state.last_request = state.clock.now = now
        raw: dict[str, Any] = {}
        try:
            if self._admission.admit(peer, body, now):
                raw = parse(body)
                state.audit.begin(peer, raw)
                if "client-version" in raw or "known-instance" in raw:
                    send_version_notice(state, self._version, peer, raw)
                request = to_request(raw, state.config.extension_ops)
                if ignored := unknown_fields(raw):
                    state.ignored_fields[peer, raw["id"]] = ignored
                self._operations.dispatch(request, peer, body, now)
                if state.protocol_errors:
                    state.protocol_errors.pop(peer, None)
        except RequestError as error:
            self._admission.reject(peer, body, raw, error, now)
        except Exception:  # noqa: BLE001 - a defect in one operation must not end every session
            state.reply_error(peer, raw.get("id", ""), self._internal_error())
        return self._finish_call(now)

    def _internal_error(self) -> RequestError:
        """Log the exception at hand, and return the error for a client."""
        number = self.state.config.new_id()
        self.state.log(f"internal error {number}\n{traceback.format_exc()}")
        error = sys.exception()
        where = "" if error is None else traceback.extract_tb(error.__traceback__)[-1].name
        self.state.bus.emit(LogError, where=where, summary=type(error).__name__, correlation_id=number)
        text = f"Internal server error: look for {number} in the broker's log"
        return RequestError("internal-error", text, correlation_id=number)

    # --- workers ---

    def handle_worker_frame(self, number: int, frame: bytes, now: float) -> list[Effect]:
        """Handle one frame of a worker that has shown its token. A worker that sends a malformed one is killed."""
        worker = self.scheduler.pool.workers.get(number)
        if worker is None:
            return self._worker_protocol.answer_unknown(number, frame)
        worker.last_seen = self.state.clock.now = now
        try:
            prepared = self._worker_protocol.handle(worker, frame, now)
            if isinstance(prepared, SnapshotReady):
                is_own = isinstance(prepared.task.request, Hibernate)
                taker = self._operations.hibernation if is_own else self._operations.clones
                taker.on_snapshot(prepared.task, prepared.body, now)
            elif prepared is not None:
                self._operations.branches.on_branched(prepared.task, prepared.body, now)
        except (ValueError, msgspec.MsgspecError) as error:
            self.scheduler.teardown.on_worker_lost(worker, f"protocol: {error}", now, dead=False)
        except Exception:  # noqa: BLE001 - as in `handle_request`
            self._internal_error()
        return self._finish_call(now)

    def handle_worker_exit(self, number: int, cause: str, now: float) -> list[Effect]:
        """Handle the death of a worker process."""
        self.state.clock.now = now
        for worker in self.scheduler.pool.served_by(number):
            self.scheduler.teardown.on_worker_lost(worker, cause, now, dead=True)
        return self._finish_call(now)

    # --- answers of the shell ---

    def on_memory_measured(self, machine: AvailableMemory, now: float) -> list[Effect]:
        """Handle the answer to MeasureMemory."""
        self.state.clock.now = now
        self._memory_pressure.on_measured(machine, now)
        return self._finish_call(now)

    def on_traffic(self, record: TrafficRecord, now: float) -> list[Effect]:
        """Handle a record of what a session has reached or was refused."""
        self.state.clock.now = now
        observe_traffic(self.state, record)
        return self._finish_call(now)

    def on_config_reread(self, result: RereadResult, peer: Peer | None, request_id: str, now: float) -> list[Effect]:
        """Handle the answer to RereadConfig. `peer` is None when a signal asked for it."""
        self.state.clock.now = now
        apply_reload(self.state, self.scheduler, result, peer, request_id, now)
        self._maintenance.set_pace()
        return self._finish_call(now)

    def on_snapshot_written(self, effect: WriteSnapshot, path: str, error: str | None, now: float) -> list[Effect]:
        """Handle the answer to WriteSnapshot: the file, and why it could not be written."""
        self.state.clock.now = now
        self._operations.snapshots.on_written(effect, path, error)
        return self._finish_call(now)

    def on_environment_removed(self, environment: str, error: str | None, now: float) -> list[Effect]:
        """Handle the answer to DeleteEnvironment; `error` is the reason why it is still there."""
        self.state.clock.now = now
        self._operations.environments.on_removed(environment, error)
        return self._finish_call(now)

    def handle_verdict(
        self, route: int, request: HookRequest, verdict: Verdict, hook: str | None, now: float
    ) -> list[Effect]:
        """Handle the answer to RunHooks; see `HookGate.on_verdict`."""
        self.state.clock.now = now
        try:
            self.scheduler.hooks.on_verdict(route, request, verdict, hook, now)
        except Exception:  # noqa: BLE001 - the eval is blocked at its deadline
            self._internal_error()
        return self._finish_call(now)

    def on_operation_output(self, number: int, text: str, now: float) -> list[Effect]:
        """Handle output of an operation of an extension."""
        self.state.clock.now = now
        self._operations.extensions.on_output(number, text)
        return self._finish_call(now)

    def on_operation_ended(self, number: int, outcome: OperationOutcome, now: float) -> list[Effect]:
        """Handle the end of an operation of an extension."""
        self.state.clock.now = now
        self._operations.extensions.on_ended(number, outcome)
        return self._finish_call(now)

    def on_extension_loaded(self, owner: str, contributes: list[str], now: float) -> None:
        """Handle that an extension has registered its contributions."""
        self.state.clock.now = now
        self.state.bus.emit(ExtensionLoaded, emitter=owner, contributes=contributes)

    def on_extension_failed(self, owner: str, contribution: str, error: str, now: float) -> list[Effect]:
        """Handle that a part of an extension raised or was too slow. The others go on."""
        self.state.clock.now = now
        self.state.effects.append(Log(f"extension {owner}: {contribution}: {clip(error)}"))
        self.state.bus.emit(ExtensionError, emitter=owner, contribution=contribution, error=clip(error))
        return self._finish_call(now)

    # --- time ---

    def next_deadline(self) -> float | None:
        """Return the moment at which `tick` is wanted next."""
        return self.state.deadlines.next_due()

    def tick(self, now: float, workers_read_at: float | None = None) -> list[Effect]:
        """Do what is due.

        Args:
            now: Seconds, monotonic.
            workers_read_at: The moment when all that workers had sent was last read, if that is not now.
        """
        self.state.clock.now = now
        self._maintenance.workers_read_at = now if workers_read_at is None else workers_read_at
        try:
            self.state.deadlines.run_due(now)
        except MemoryError:  # the deadline is due again
            raise
        except Exception:  # noqa: BLE001 - the rest is done by the next tick
            self._internal_error()
        return self._finish_call(now)

    def on_suspended(self, seconds: float) -> None:
        """Put off every time limit after a time in which the broker itself did not run."""
        self._maintenance.on_suspended(seconds)

    def drain(self, why: str, now: float, *, keep_sessions: bool = False) -> list[Effect]:
        """Begin the end of the broker, as `shutdown` does.

        Args:
            why: The reason.
            now: Seconds, monotonic.
            keep_sessions: Leave the sessions to the next broker, if they outlive this one.
        """
        self.state.clock.now = now
        if keep_sessions and self.state.config.sessions_outlive:
            self._operations.shutdown.leave(why, now)
        else:
            self._operations.shutdown.begin(why, now)
        return self._finish_call(now)

    # --- effects ---

    @property
    def pending_events(self) -> int:
        """The approximate number of effects that `flush_events` has to make."""
        return self.state.bus.pending_effects()

    def flush_events(self, most: float = math.inf) -> list[Effect]:
        """Build deferred events, after the effects of a call were done and its replies sent.

        Args:
            most: Stop after about so many effects.
        """
        try:
            self.state.bus.deliver(most)
        except Exception:  # noqa: BLE001 - an event that cannot be built must not end an eval, nor cause another event
            self.state.effects.append(Log(f"an event could not be made\n{traceback.format_exc()}"))
        return self.take_effects()

    def take_effects(self) -> list[Effect]:
        """Return the effects of a call that returns something else."""
        state = self.state
        records = state.changes.take()
        effects: list[Effect] = [SaveRecords(records), *state.effects] if records else state.effects[:]
        state.effects.clear()
        return effects

    def _finish_call(self, now: float) -> list[Effect]:
        state = self.state
        if state.drain_deadline is not None and state.semaphore.in_use == 0:
            self._admission.answer_all(now)
            self._operations.shutdown.finish("drained", now)
        records = state.changes.take()
        effects: list[Effect] = [SaveRecords(records), *state.effects] if records else state.effects[:]
        state.effects.clear()
        return effects

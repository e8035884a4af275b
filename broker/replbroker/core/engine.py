"""The core's door: what clients and workers say comes in here, with the moment; effects go out.

No socket, no clock, no process, no randomness: the same calls give the same effects, which is what the
simulator in the tests lives on.
"""

from __future__ import annotations

import math
import sys
import traceback

import msgspec

from replbroker.core.admission.connection_admission import ConnectionAdmission
from replbroker.core.admission.delayed_errors import DelayedErrors
from replbroker.core.admission.disconnects import detach_peer, end_connection
from replbroker.core.admission.protocol_errors import count_protocol_error
from replbroker.core.admission.rate_limits import check_rate
from replbroker.core.admission.version_notice import send_version_notice
from replbroker.core.clients.access_control import ANONYMOUS
from replbroker.core.effects import Effect, Log, Peer, SavedSessions, SessionRecord
from replbroker.core.limits.memory_totals import AvailableMemory
from replbroker.core.limits.quotas import CONNECTIONS
from replbroker.core.operations.dispatcher import OperationDispatcher
from replbroker.core.operations.settings_reload import RereadResult, apply_reload
from replbroker.core.operations.subscription_ops import end_subscriptions
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.scheduling.hook_gate import HookGate
from replbroker.core.scheduling.idle_sessions import close_idle
from replbroker.core.scheduling.memory_pressure import MemoryPressure
from replbroker.core.scheduling.time_limits import sweep_pace
from replbroker.core.scheduling.worker_pool import Worker
from replbroker.core.scheduling.worker_protocol import WorkerProtocol
from replbroker.core.sessions.session import STARTING
from replbroker.core.sessions.session_registry import NameKey
from replbroker.core.state import BrokerState, CoreConfig
from replwire.events import BrokerStarted, ExtensionError, ExtensionLoaded, LogError
from replwire.ext.verdicts import HookRequest, Verdict
from replwire.faults import RequestError, clip
from replwire.limits import Limits
from replwire.requests import extract_id, parse, to_request, unknown_fields


class BrokerCore:
    """One broker's decisions. Every method that takes `now` (monotonic seconds) returns the effects to do."""

    def __init__(self, setup: CoreConfig) -> None:
        self.state = BrokerState(setup)
        self.evals = EvalScheduler(self.state)
        self.pool = self.evals.pool
        self._connection_admission = ConnectionAdmission(self.state)
        self._delayed_errors = DelayedErrors(self.state)
        self._hook_gate = HookGate(self.state, self.evals)
        self._ops = OperationDispatcher(self.state, self.evals)
        self._memory_pressure = MemoryPressure(self.state, self.pool, self._on_worker_lost)
        self._worker_protocol = WorkerProtocol(
            self.state, self.evals, self._memory_pressure, self._ops.dumped, self._on_worker_lost
        )
        self._swept_at = self._workers_read_at = setup.started
        self._sweep_s = sweep_pace(setup.limits, setup.idle_exit_ms)
        self._version = dict(setup.versions).get("replctl", "")

    def start(self, now: float) -> list[Effect]:
        """Warm the pool, wind the clock."""
        self.state.last_request = now
        self.state.audit.set_time(now)
        self._swept_at = now
        self.state.deadlines.call_at(now + self._sweep_s, self._sweep)
        self._emit_started()
        self._memory_pressure.start()
        self.pool.refill(now)
        return self._finish_call(now)

    def _emit_started(self) -> None:
        setup, usual = self.state.config, msgspec.to_builtins(Limits())
        changed = {name: value for name, value in msgspec.to_builtins(setup.limits).items() if value != usual[name]}
        self.state.bus.emit(BrokerStarted, version=self._version, runtimes=list(setup.runtimes), limits=changed)

    def restore(self, saved: SavedSessions) -> list[str]:
        """Take over what a broker before this one saved; what was lost with it, as this broker's user calls it."""
        lost = self.state.records.restore(saved)
        for record in (*lost, *(each for each in saved.records if not each.open)):
            if record.cause is not None:
                self.state.sessions.record_end(NameKey(record.owner, record.id), record.cause)
                self.state.sessions.record_end(
                    NameKey(record.owner, record.name or record.id, record.scope), record.cause
                )
        return [self._display_name(record) for record in lost]

    def _display_name(self, record: SessionRecord) -> str:
        owner = "" if record.owner == self.state.config.broker_user else f"{record.owner}/"
        scope = f" ({record.scope})" if record.scope else ""
        return f"{owner}{record.name or record.id}{scope}"

    def saved_sessions(self) -> SavedSessions:
        """What a broker after this one needs to know of names and epochs."""
        return self.state.records.export()

    def has_identity(self, peer: Peer) -> bool:
        """Whether `meet` has told who this peer is."""
        return self.state.access.is_registered(peer)

    def set_identity(self, peer: Peer, identity: str) -> None:
        """Who stands behind a peer, before its first request: the transport vouches for it."""
        self.state.access.register(peer, identity)

    def on_connect(self, peer: Peer, identity: str, now: float, groups: tuple[int, ...] = ()) -> bytes | None:
        """A connection was made, by somebody whom the transport vouches for; the refusal of one too many, for a
        transport that says it before it is asked anything."""
        return self._connection_admission.admit(peer, identity, now, groups)

    def on_identified(self, peer: Peer, identity: str) -> None:
        """A connection has shown a key."""
        self.state.access.register(peer, identity)
        self.state.connections.identify(peer, self.state.access.identity_of(peer))

    def reject_peer(self, peer: Peer, why: str) -> None:
        """Nothing of this connection is done, and its requests are refused with this sentence."""
        self.state.connections.reject(peer, RequestError("unauthorized", why))

    def on_disconnect(self, peer: Peer, now: float) -> list[Effect]:
        """A connection has ended."""
        self.state.connections.close(peer)
        return self.on_unreachable(peer, now)

    def has_pending(self, peer: Peer) -> bool:
        """Whether some request of this peer has no last answer yet."""
        return self.state.audit.has_pending(peer) or self._delayed_errors.has_pending(peer)

    def has_room(self, peer: Peer) -> bool:
        """Return whether there is room by now for a connection that had none when it was made."""
        return self.state.connections.has_room(peer)

    @property
    def has_running_evals(self) -> bool:
        """Whether some eval has a slot."""
        return self.state.semaphore.in_use > 0

    @property
    def is_draining(self) -> bool:
        """Whether the broker is about to end, and accepts nothing new."""
        return self.state.draining

    def set_published_types(self, types: frozenset[str]) -> None:
        """Set the event types that readers of the PUB socket have subscribed to."""
        self.state.bus.set_published_types(types)

    @property
    def pending_events(self) -> int:
        """How many effects `rest` has to make, about."""
        return self.state.bus.pending_effects

    def flush_events(self, most: float = math.inf) -> list[Effect]:
        """What can wait until the effects of a call are done: events, which are not in the way of an answer so. All,
        or about `most` effects."""
        try:
            self.state.bus.deliver(most)
        except Exception:  # noqa: BLE001 - what is told of an eval must not end it; nor is this told as an event
            self.state.effects.append(Log(f"an event could not be made\n{traceback.format_exc()}"))
        out, self.state.effects = self.state.effects, []
        return out

    # --- clients ---

    def handle_request(self, peer: Peer, body: bytes, now: float) -> list[Effect]:
        """One request, as it came."""
        state = self.state
        state.last_request = now
        state.audit.set_time(now)
        request_id, raw = "", {}
        try:
            if (late := self._admit(peer, body, now)) is not None:
                self._delayed_errors.add(peer, body, late, now)
                state.emitter.emit_rejection(late, None, now)
                if late.code == CONNECTIONS.word:
                    self._connection_admission.close_excess(peer, now)
                return self._finish_call(now)
            if len(body) > state.limits.max_message_bytes:
                text = f"message exceeds maximum size of {state.limits.max_message_bytes} bytes"
                raise state.limit_error("message-too-large", "max-message-bytes", text)
            raw = parse(body)
            request_id = raw["id"]
            state.audit.begin(peer, raw)
            if "client-version" in raw:
                send_version_notice(state, self._version, peer, raw)
            request = to_request(raw)
            if ignored := unknown_fields(raw):
                state.ignored_fields[peer, request_id] = ignored
            self._ops.dispatch(request, peer, body, now)
            if state.protocol_errors:
                state.protocol_errors.pop(peer, None)
        except RequestError as refusal:
            found = refusal.fields["id"] if "id" in refusal.fields else request_id or extract_id(body)
            state.reply_error(peer, found, refusal)
            agent = raw.get("agent")
            state.emitter.emit_rejection(refusal, agent if isinstance(agent, str) else None, now)
            count_protocol_error(state, peer, refusal.code, now)
            if refusal.code == CONNECTIONS.word:
                self._connection_admission.close_excess(peer, now)
        except Exception:  # noqa: BLE001 - a defect in one op must not take every session along
            self.state.reply_error(peer, request_id, self._internal_error())
        return self._finish_call(now)

    def _admit(self, peer: Peer, body: bytes, now: float) -> RequestError | None:
        """Whether one more request of this peer is looked at; the refusal of one that comes too often."""
        state = self.state
        if (refusal := state.connections.rejection_of(peer)) is not None:
            raise refusal
        if not state.access.is_valid(peer):
            self._revoke([peer])
        try:
            state.connections.check(peer)
            check_rate(state, peer, body, now)
        except RequestError as refusal:
            return refusal
        return None

    def _internal_error(self) -> RequestError:
        """Log the exception at hand; how to tell somebody of it."""
        number = self.state.config.new_id()
        self.state.log(f"internal error {number}\n{traceback.format_exc()}")
        error = sys.exception()
        where = "" if error is None else traceback.extract_tb(error.__traceback__)[-1].name
        self.state.bus.emit(LogError, where=where, summary=type(error).__name__, correlation_id=number)
        text = f"Internal server error: look for {number} in the broker's log"
        return RequestError("internal-error", text, correlation_id=number)

    def on_unreachable(self, peer: Peer, now: float) -> list[Effect]:
        """A client cannot be reached: its evals in sessions go on, nobody is told."""
        state = self.state
        state.audit.set_time(now)
        state.greetings.forget(peer)
        state.bus.forget_peer(peer)
        self._delayed_errors.drop(peer)
        if state.audit.has_used(peer):  # else nothing of it is anywhere
            end_connection(state, self.evals, peer, now)
        state.audit.on_peer_lost(peer)
        if peer not in state.connections:  # else what it has sent by now is still heard as its own
            state.access.forget(peer)
            state.rate_windows.pop(peer, None)  # that of an identity stays: it has other connections, or comes back
        state.protocol_errors.pop(peer, None)
        if state.ignored_fields:
            state.ignored_fields = {key: names for key, names in state.ignored_fields.items() if key[0] != peer}
        return self._finish_call(now)

    def on_identities_changed(self, now: float) -> list[Effect]:
        """Keys or tokens were added or taken back: nothing more is told to whoever came with one that is gone."""
        self.state.audit.set_time(now)
        self._revoke(self.state.access.find_revoked())
        return self._finish_call(now)

    def _revoke(self, peers: list[Peer]) -> None:
        """They are nobody from here on, whatever they still waited for."""
        state = self.state
        why = "this key or token is no longer known"
        for peer in peers:
            end_subscriptions(state, state.bus.subscriptions_of(peer), ["done", "error", "unauthorized"], why)
            detach_peer(state, self.evals, peer)
            for request_id in state.audit.pending_ids(peer):
                state.reply_error(peer, request_id, RequestError("unauthorized", why))
            state.access.register(peer, ANONYMOUS)
            state.connections.identify(peer, ANONYMOUS)

    # --- workers ---

    def handle_worker_frame(self, number: int, frame: bytes, now: float) -> list[Effect]:
        """One frame from a worker that is known by its token. A malformed one costs it its life."""
        worker = self.pool.workers.get(number)
        if worker is None:
            return []
        worker.heard = now
        self.state.audit.set_time(now)
        try:
            self._worker_protocol.handle(worker, frame, now)
        except (ValueError, msgspec.MsgspecError) as error:
            self._on_worker_lost(worker, f"protocol: {error}", now, dead=False)
        except Exception:  # noqa: BLE001 - as in `hear`
            self._internal_error()
        return self._finish_call(now)

    def handle_worker_exit(self, number: int, cause: str, now: float) -> list[Effect]:
        """A worker process died."""
        self.state.audit.set_time(now)
        worker = self.pool.workers.get(number)
        if worker is not None:
            self._on_worker_lost(worker, cause, now, dead=True)
        return self._finish_call(now)

    def _on_worker_lost(self, worker: Worker, cause: str, now: float, *, dead: bool) -> None:
        session = worker.session
        if session is None:
            self.pool.on_unassigned_exit(worker, cause, now, dead=dead)
        elif session.state == STARTING:
            self.evals.on_start_failed(session, cause, now)
        else:
            self.state.log(f"session {session.label}: worker {worker.number} lost: {cause}")
            self.evals.lose_worker(session, cause, now)
        self.pool.refill(now)

    def on_memory_measured(self, machine: AvailableMemory, now: float) -> list[Effect]:
        """What memory there is: the answer to LookAtMemory."""
        self.state.audit.set_time(now)
        self._memory_pressure.on_measured(machine, now)
        return self._finish_call(now)

    def set_problems(self, troubles: list[str]) -> None:
        """What of the broker's own directories and sockets is gone, and cannot be made anew."""
        self.state.problems = troubles

    def on_config_reread(self, reread: RereadResult, peer: Peer | None, request_id: str, now: float) -> list[Effect]:
        """What came of reading the config file again: the answer to RereadConfig, or to a signal."""
        self.state.audit.set_time(now)
        apply_reload(self.state, self.evals, reread, peer, request_id, now)
        self._sweep_s = sweep_pace(self.state.limits, self.state.config.idle_exit_ms)
        return self._finish_call(now)

    def on_environment_removed(self, environment: str, error: str | None, now: float) -> list[Effect]:
        """What came of RemoveEnvironment; `error` is why it is still there."""
        self.state.audit.set_time(now)
        self._ops.environments.on_removed(environment, error)
        return self._finish_call(now)

    # --- time ---

    def tick(self, now: float, workers_read_at: float | None = None) -> list[Effect]:
        """Do what is due. `listened` is when nothing was left that a worker had said, if that is not now."""
        self.state.audit.set_time(now)
        self._workers_read_at = now if workers_read_at is None else workers_read_at
        try:
            self.state.deadlines.run_due(now)
        except MemoryError:  # it is due again
            raise
        except Exception:  # noqa: BLE001 - what else is due is done by the next tick
            self._internal_error()
        return self._finish_call(now)

    def on_suspended(self, seconds: float) -> None:
        """The broker itself did not run for this long: no limit counts it, and nobody was idle or silent."""
        state = self.state
        state.deadlines.shift(seconds)
        state.last_request += seconds
        self._swept_at += seconds
        for worker in self.pool.workers.values():
            worker.heard += seconds
        for session in state.sessions:
            session.last_active += seconds
        state.log(f"the broker did not run for {seconds:.1f} s: every time limit is put off by that")

    def next_deadline(self) -> float | None:
        """When `tick` is wanted next."""
        return self.state.deadlines.next_due()

    def drain(self, why: str, now: float) -> list[Effect]:
        """Begin the end, as `shutdown` does."""
        self.state.audit.set_time(now)
        self._ops.drain(why, now)
        return self._finish_call(now)

    def _sweep(self, now: float) -> None:
        state = self.state
        if now - self._swept_at > 2 * self._sweep_s + 1:
            self.pool.reset_heartbeats(now)
        self._swept_at = now
        state.deadlines.call_at(now + self._sweep_s, self._sweep)
        close_idle(state, self.evals, now)
        for worker in self.pool.missed_heartbeat(self._workers_read_at):
            if worker.number in self.pool.workers:
                self._on_worker_lost(worker, f"silent for {state.limits.worker_silence_ms} ms", now, dead=False)
        self._revoke(state.access.find_revoked())
        for key in [key for key, window in state.rate_windows.items() if window.is_idle(now)]:
            del state.rate_windows[key]
        idle_s = state.config.idle_exit_ms / 1000
        if idle_s and not len(state.sessions) and now - state.last_request >= idle_s:
            self._ops.drain(f"no sessions and no requests for {idle_s:g} s", now)

    # --- extensions ---

    def handle_verdict(
        self, route: int, question: HookRequest, verdict: Verdict, hook: str | None, now: float
    ) -> list[Effect]:
        """What the hooks say of an eval. `hook` is whose word it is, where one alone decided."""
        self.state.audit.set_time(now)
        try:
            self._hook_gate.on_verdict(route, question, verdict, hook, now)
        except Exception:  # noqa: BLE001 - the eval is blocked at its deadline
            self._internal_error()
        return self._finish_call(now)

    def on_extension_loaded(self, owner: str, contributes: list[str], now: float) -> None:
        """An extension has registered."""
        self.state.audit.set_time(now)
        self.state.bus.emit(ExtensionLoaded, emitter=owner, contributes=contributes)

    def on_extension_failed(self, owner: str, contribution: str, error: str, now: float) -> list[Effect]:
        """Something of an extension raised or was too slow; the others go on."""
        self.state.audit.set_time(now)
        self.state.effects.append(Log(f"extension {owner}: {contribution}: {clip(error)}"))
        self.state.bus.emit(ExtensionError, emitter=owner, contribution=contribution, error=clip(error))
        return self._finish_call(now)

    def take_effects(self) -> list[Effect]:
        """What a call has left to do that returns something else."""
        out, self.state.effects = self.state.effects, []
        return out

    def _finish_call(self, now: float) -> list[Effect]:
        state = self.state
        if state.drain_deadline is not None and state.semaphore.in_use == 0:
            self._delayed_errors.answer_all(now)
            self._ops.finish_drain("drained", now)
        return self.take_effects()

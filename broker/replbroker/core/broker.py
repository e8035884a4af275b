"""The core's door: what clients and workers say comes in here, with the moment; effects go out.

No socket, no clock, no process, no randomness: the same calls give the same effects, which is what the
simulator in the tests lives on.
"""

from __future__ import annotations

import math
import sys
import traceback

import msgspec

from replbroker.core.access import ANYBODY
from replbroker.core.arrivals import Arrivals
from replbroker.core.delayed_refusals import DelayedRefusals
from replbroker.core.disconnects import end_connection, forget_peer
from replbroker.core.effects import Effect, Note, Peer, SavedSessions, SessionRecord
from replbroker.core.evals import Evals
from replbroker.core.idle import close_idle
from replbroker.core.judging import Judging
from replbroker.core.memory import MemoryLeft
from replbroker.core.memory_pressure import MemoryPressure
from replbroker.core.ops import Ops
from replbroker.core.quotas import CONNECTIONS
from replbroker.core.rate_limits import check_rate
from replbroker.core.registry import NameKey
from replbroker.core.reload import Reread, put_in_force
from replbroker.core.session import STARTING
from replbroker.core.staff import Worker
from replbroker.core.state import Setup, State
from replbroker.core.strikes import strike
from replbroker.core.time_limits import sweep_pace
from replbroker.core.versions import tell_version
from replbroker.core.watch_ops import end_subscriptions
from replbroker.core.worker_frames import WorkerFrames
from replwire.events import BrokerStarted, ExtensionError, ExtensionLoaded, LogError
from replwire.ext.verdicts import Question, Verdict
from replwire.faults import Refusal, clip
from replwire.limits import Limits
from replwire.requests import id_of, parse, typed, unknown_fields


class Core:
    """One broker's decisions. Every method that takes `now` (monotonic seconds) returns the effects to do."""

    def __init__(self, setup: Setup) -> None:
        self.state = State(setup)
        self.evals = Evals(self.state)
        self.staff = self.evals.staff
        self._arrivals = Arrivals(self.state)
        self._delayed = DelayedRefusals(self.state)
        self._judging = Judging(self.state, self.evals)
        self._ops = Ops(self.state, self.evals)
        self._memory = MemoryPressure(self.state, self.staff, self._worker_lost)
        self._frames = WorkerFrames(self.state, self.evals, self._memory, self._ops.dumped, self._worker_lost)
        self._swept = self._listened = setup.started
        self._sweep_s = sweep_pace(setup.limits, setup.idle_exit_ms)
        self._version = dict(setup.versions).get("replctl", "")

    def start(self, now: float) -> list[Effect]:
        """Warm the pool, wind the clock."""
        self.state.last_request = now
        self.state.trail.at(now)
        self._swept = now
        self.state.deadlines.at(now + self._sweep_s, self._sweep)
        self._say_started()
        self._memory.start()
        self.staff.refill(now)
        return self._effects(now)

    def _say_started(self) -> None:
        setup, usual = self.state.setup, msgspec.to_builtins(Limits())
        changed = {name: value for name, value in msgspec.to_builtins(setup.limits).items() if value != usual[name]}
        self.state.bus.tell(BrokerStarted, version=self._version, runtimes=list(setup.runtimes), limits=changed)

    def restore(self, saved: SavedSessions) -> list[str]:
        """Take over what a broker before this one saved; what was lost with it, as this broker's user calls it."""
        lost = self.state.records.restore(saved)
        for record in (*lost, *(each for each in saved.records if not each.open)):
            if record.cause is not None:
                self.state.sessions.note(NameKey(record.owner, record.id), record.cause)
                self.state.sessions.note(NameKey(record.owner, record.name or record.id, record.scope), record.cause)
        return [self._called(record) for record in lost]

    def _called(self, record: SessionRecord) -> str:
        owner = "" if record.owner == self.state.setup.own else f"{record.owner}/"
        scope = f" ({record.scope})" if record.scope else ""
        return f"{owner}{record.name or record.id}{scope}"

    def saved(self) -> SavedSessions:
        """What a broker after this one needs to know of names and epochs."""
        return self.state.records.saved()

    def knows(self, peer: Peer) -> bool:
        """Whether `meet` has told who this peer is."""
        return self.state.access.knows(peer)

    def meet(self, peer: Peer, identity: str) -> None:
        """Who stands behind a peer, before its first request: the transport vouches for it."""
        self.state.access.meet(peer, identity)

    def connected(self, peer: Peer, identity: str, now: float, groups: tuple[int, ...] = ()) -> bytes | None:
        """A connection was made, by somebody whom the transport vouches for; the refusal of one too many, for a
        transport that says it before it is asked anything."""
        return self._arrivals.connected(peer, identity, now, groups)

    def identified(self, peer: Peer, identity: str) -> None:
        """A connection has shown a key."""
        self.state.access.meet(peer, identity)
        self.state.connections.identify(peer, self.state.access.of(peer))

    def turn_away(self, peer: Peer, why: str) -> None:
        """Nothing of this connection is done, and its requests are refused with this sentence."""
        self.state.connections.turn_away(peer, Refusal("unauthorized", why))

    def disconnected(self, peer: Peer, now: float) -> list[Effect]:
        """A connection has ended."""
        self.state.connections.close(peer)
        return self.peer_gone(peer, now)

    def awaits(self, peer: Peer) -> bool:
        """Whether some request of this peer has no last answer yet."""
        return self.state.trail.awaits(peer) or self._delayed.awaits(peer)

    @property
    def untold(self) -> int:
        """How many effects `rest` has to make, about."""
        return self.state.bus.untold

    def rest(self, most: float = math.inf) -> list[Effect]:
        """What can wait until the effects of a call are done: events, which are not in the way of an answer so. All,
        or about `most` effects."""
        try:
            self.state.bus.deliver(most)
        except Exception:  # noqa: BLE001 - what is told of an eval must not end it; nor is this told as an event
            self.state.out.append(Note(f"an event could not be made\n{traceback.format_exc()}"))
        out, self.state.out = self.state.out, []
        return out

    # --- clients ---

    def hear(self, peer: Peer, body: bytes, now: float) -> list[Effect]:
        """One request, as it came."""
        state = self.state
        state.last_request = now
        state.trail.at(now)
        request_id, raw = "", {}
        try:
            if (late := self._admit(peer, body, now)) is not None:
                self._delayed.add(peer, body, late, now)
                state.news.refused(late, None, now)
                if late.word == CONNECTIONS.word:
                    self._arrivals.end_without_room(peer, now)
                return self._effects(now)
            if len(body) > state.limits.max_message_bytes:
                text = f"message exceeds maximum size of {state.limits.max_message_bytes} bytes"
                raise state.full("message-too-large", "max-message-bytes", text)
            raw = parse(body)
            request_id = raw["id"]
            state.trail.begin(peer, raw)
            if "client-version" in raw:
                tell_version(state, self._version, peer, raw)
            request = typed(raw)
            if ignored := unknown_fields(raw):
                state.ignored[peer, request_id] = ignored
            self._ops.perform(request, peer, body, now)
            if state.strikes:
                state.strikes.pop(peer, None)
        except Refusal as refusal:
            found = refusal.more["id"] if "id" in refusal.more else request_id or id_of(body)
            state.refuse(peer, found, refusal)
            agent = raw.get("agent")
            state.news.refused(refusal, agent if isinstance(agent, str) else None, now)
            strike(state, peer, refusal.word, now)
            if refusal.word == CONNECTIONS.word:
                self._arrivals.end_without_room(peer, now)
        except Exception:  # noqa: BLE001 - a defect in one op must not take every session along
            self.state.refuse(peer, request_id, self._defect())
        return self._effects(now)

    def _admit(self, peer: Peer, body: bytes, now: float) -> Refusal | None:
        """Whether one more request of this peer is looked at; the refusal of one that comes too often."""
        state = self.state
        if (refusal := state.connections.refusal(peer)) is not None:
            raise refusal
        if not state.access.still(peer):
            self._revoke([peer])
        try:
            state.connections.check(peer)
            check_rate(state, peer, body, now)
        except Refusal as refusal:
            return refusal
        return None

    def _defect(self) -> Refusal:
        """Log the exception at hand; how to tell somebody of it."""
        number = self.state.setup.new_id()
        self.state.note(f"internal error {number}\n{traceback.format_exc()}")
        error = sys.exception()
        where = "" if error is None else traceback.extract_tb(error.__traceback__)[-1].name
        self.state.bus.tell(LogError, where=where, summary=type(error).__name__, correlation_id=number)
        text = f"Internal server error: look for {number} in the broker's log"
        return Refusal("internal-error", text, correlation_id=number)

    def peer_gone(self, peer: Peer, now: float) -> list[Effect]:
        """A client cannot be reached: its evals in sessions go on, nobody is told."""
        state = self.state
        state.trail.at(now)
        state.greetings.forget(peer)
        state.bus.forget(peer)
        self._delayed.forget(peer)
        if state.trail.involves(peer):  # else nothing of it is anywhere
            end_connection(state, self.evals, peer, now)
        state.trail.gone(peer)
        if peer not in state.connections:  # else what it has sent by now is still heard as its own
            state.access.forget(peer)
            state.windows.pop(peer, None)  # that of an identity stays: it has other connections, or comes back
        state.strikes.pop(peer, None)
        if state.ignored:
            state.ignored = {key: names for key, names in state.ignored.items() if key[0] != peer}
        return self._effects(now)

    def identities_changed(self, now: float) -> list[Effect]:
        """Keys or tokens were added or taken back: nothing more is told to whoever came with one that is gone."""
        self.state.trail.at(now)
        self._revoke(self.state.access.revoked())
        return self._effects(now)

    def _revoke(self, peers: list[Peer]) -> None:
        """They are nobody from here on, whatever they still waited for."""
        state = self.state
        why = "this key or token is no longer known"
        for peer in peers:
            end_subscriptions(state, state.bus.of(peer), ["done", "error", "unauthorized"], why)
            forget_peer(state, self.evals, peer)
            for request_id in state.trail.of(peer):
                state.refuse(peer, request_id, Refusal("unauthorized", why))
            state.access.meet(peer, ANYBODY)
            state.connections.identify(peer, ANYBODY)

    # --- workers ---

    def worker_said(self, number: int, frame: bytes, now: float) -> list[Effect]:
        """One frame from a worker that is known by its token. A malformed one costs it its life."""
        worker = self.staff.workers.get(number)
        if worker is None:
            return []
        worker.heard = now
        self.state.trail.at(now)
        try:
            self._frames.take(worker, frame, now)
        except (ValueError, msgspec.MsgspecError) as error:
            self._worker_lost(worker, f"protocol: {error}", now, dead=False)
        except Exception:  # noqa: BLE001 - as in `hear`
            self._defect()
        return self._effects(now)

    def worker_gone(self, number: int, cause: str, now: float) -> list[Effect]:
        """A worker process died."""
        self.state.trail.at(now)
        worker = self.staff.workers.get(number)
        if worker is not None:
            self._worker_lost(worker, cause, now, dead=True)
        return self._effects(now)

    def _worker_lost(self, worker: Worker, cause: str, now: float, *, dead: bool) -> None:
        session = worker.session
        if session is None:
            self.staff.unclaimed_gone(worker, cause, now, dead=dead)
        elif session.state == STARTING:
            self.evals.start_failed(session, cause, now)
        else:
            self.state.note(f"session {session.label}: worker {worker.number} lost: {cause}")
            self.evals.lose(session, cause, now)
        self.staff.refill(now)

    def machine_seen(self, machine: MemoryLeft, now: float) -> list[Effect]:
        """What memory there is: the answer to LookAtMemory."""
        self.state.trail.at(now)
        self._memory.seen(machine, now)
        return self._effects(now)

    def set_troubles(self, troubles: list[str]) -> None:
        """What of the broker's own directories and sockets is gone, and cannot be made anew."""
        self.state.troubles = troubles

    def reread(self, reread: Reread, peer: Peer | None, request_id: str, now: float) -> list[Effect]:
        """What came of reading the config file again: the answer to RereadConfig, or to a signal."""
        self.state.trail.at(now)
        put_in_force(self.state, self.evals, reread, peer, request_id, now)
        self._sweep_s = sweep_pace(self.state.limits, self.state.setup.idle_exit_ms)
        return self._effects(now)

    def environment_removed(self, environment: str, error: str | None, now: float) -> list[Effect]:
        """What came of RemoveEnvironment; `error` is why it is still there."""
        self.state.trail.at(now)
        self._ops.environments.removed(environment, error)
        return self._effects(now)

    # --- time ---

    def tick(self, now: float, listened: float | None = None) -> list[Effect]:
        """Do what is due. `listened` is when nothing was left that a worker had said, if that is not now."""
        self.state.trail.at(now)
        self._listened = now if listened is None else listened
        try:
            self.state.deadlines.run_due(now)
        except MemoryError:  # it is due again
            raise
        except Exception:  # noqa: BLE001 - what else is due is done by the next tick
            self._defect()
        return self._effects(now)

    def suspended(self, seconds: float) -> None:
        """The broker itself did not run for this long: no limit counts it, and nobody was idle or silent."""
        state = self.state
        state.deadlines.shift(seconds)
        state.last_request += seconds
        self._swept += seconds
        for worker in self.staff.workers.values():
            worker.heard += seconds
        for session in state.sessions:
            session.active += seconds
        state.note(f"the broker did not run for {seconds:.1f} s: every time limit is put off by that")

    def next_deadline(self) -> float | None:
        """When `tick` is wanted next."""
        return self.state.deadlines.next()

    def drain(self, why: str, now: float) -> list[Effect]:
        """Begin the end, as `shutdown` does."""
        self.state.trail.at(now)
        self._ops.drain(why, now)
        return self._effects(now)

    def _sweep(self, now: float) -> None:
        state = self.state
        if now - self._swept > 2 * self._sweep_s + 1:
            self.staff.forgive_silence(now)
        self._swept = now
        state.deadlines.at(now + self._sweep_s, self._sweep)
        close_idle(state, self.evals, now)
        for worker in self.staff.silent(self._listened):
            if worker.number in self.staff.workers:
                self._worker_lost(worker, f"silent for {state.limits.worker_silence_ms} ms", now, dead=False)
        self._revoke(state.access.revoked())
        for key in [key for key, window in state.windows.items() if window.idle(now)]:
            del state.windows[key]
        idle_s = state.setup.idle_exit_ms / 1000
        if idle_s and not len(state.sessions) and now - state.last_request >= idle_s:
            self._ops.drain(f"no sessions and no requests for {idle_s:g} s", now)

    # --- extensions ---

    def judged(self, route: int, question: Question, verdict: Verdict, hook: str | None, now: float) -> list[Effect]:
        """What the hooks say of an eval. `hook` is whose word it is, where one alone decided."""
        self.state.trail.at(now)
        try:
            self._judging.heard(route, question, verdict, hook, now)
        except Exception:  # noqa: BLE001 - the eval is blocked at its deadline
            self._defect()
        return self._effects(now)

    def extension_loaded(self, owner: str, contributes: list[str], now: float) -> None:
        """An extension has registered."""
        self.state.trail.at(now)
        self.state.bus.tell(ExtensionLoaded, emitter=owner, contributes=contributes)

    def extension_failed(self, owner: str, contribution: str, error: str, now: float) -> list[Effect]:
        """Something of an extension raised or was too slow; the others go on."""
        self.state.trail.at(now)
        self.state.out.append(Note(f"extension {owner}: {contribution}: {clip(error)}"))
        self.state.bus.tell(ExtensionError, emitter=owner, contribution=contribution, error=clip(error))
        return self._effects(now)

    def effects(self) -> list[Effect]:
        """What a call has left to do that returns something else."""
        out, self.state.out = self.state.out, []
        return out

    def _effects(self, now: float) -> list[Effect]:
        state = self.state
        if state.drain_deadline is not None and state.gate.taken == 0:
            self._delayed.answer_all(now)
            self._ops.finish_drain("drained", now)
        return self.effects()

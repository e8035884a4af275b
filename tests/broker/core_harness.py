"""A harness for the core: effects are applied to fake workers, replies are recorded.

Time is `harness.now`, and passes in `harness.wait` alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import msgspec

from fake_worker import FakeWorker
from replbroker.core.config import CoreConfig
from replbroker.core.effects import (
    Audit,
    CloseConnection,
    DeleteEnvironment,
    DeletePackages,
    DeleteSnapshot,
    Disconnect,
    Effect,
    Kill,
    LeaveWorker,
    Log,
    MeasureMemory,
    PauseReading,
    PublishEvent,
    RereadConfig,
    RunHooks,
    SaveRecords,
    Spawn,
    StartBranch,
    StartEgress,
    StopBroker,
    ToClient,
    ToWorker,
    WorkerSpec,
    WriteSnapshot,
)
from replbroker.core.engine import BrokerCore
from replbroker.core.limits.memory_totals import AvailableMemory
from replbroker.core.limits.quotas import QUEUE
from replbroker.core.operations.settings_reload import RereadResult
from replbroker.core.records import KeyHistory, Record, SavedState, WorkerRecord
from replbroker.core.sessions.sandbox_status import SandboxStatus
from replbroker.core.sessions.session import Session
from replbroker.journal_lines import JournalState
from replwire import events
from replwire.agents import AgentRules
from replwire.config import load
from replwire.events import Event
from replwire.ext.verdicts import Verdict
from replwire.limits import Limits
from replwire.link import (
    HEADER_BYTES,
    FrameKind,
    Outcome,
    unpack,
)
from replwire.ops import Request
from replwire.policy import Policy
from replwire.requests import to_request

Answer = dict[str, Any]
WALL = 1_700_000_000.0  # Unix time of monotonic zero
_encode = msgspec.json.encode
_decode = msgspec.json.decode


def decode_declared(effect: PublishEvent) -> Event:
    """Decode an event as every reader does. Fails for an event or field that is not declared."""
    event = events.decode(effect.body)
    assert events.encode(event) == effect.body, "an event has fields that are not declared"
    assert event.v == events.VERSION
    assert (event.emitter == events.BROKER) != isinstance(event, events.ExtensionLoaded | events.ExtensionError)
    assert event.canonical == bool(event.seq)
    assert effect.transcript_id in (None, events.BROKER if event.session is None else event.session)
    return event


class CoreHarness:
    """The core, its clients and its workers."""

    def __init__(
        self,
        *,
        warm: int = 0,
        idle_exit_ms: int = 0,
        hibernate_after_ms: int = 0,
        auto: bool = True,
        agents: str = "",
        audit: bool = False,
        record: bool = True,
        runtimes: tuple[str, ...] = ("python",),
        hooks: bool = False,
        checkpoints: bool = False,
        **limits: int,
    ) -> None:
        self.now = 1000.0
        self.checkpoints = checkpoints  # workers can go on from one
        self.auto = auto  # workers become ready, and take any session, at once
        ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self.workers: dict[int, FakeWorker] = {}
        self.processes: set[int] = set()  # that serve workers
        self.leaving: dict[int, FakeWorker] = {}  # workers that have yet to be told that their sessions are over
        self.branched_from: dict[int, tuple[int, int]] = {}  # worker and checkpoint that a branch began with
        self.spawned: list[int] = []
        self.killed: list[int] = []
        self.replies: dict[str, list[Answer]] = {}
        self.received: list[tuple[bytes, Answer]] = []
        self.log_lines: list[str] = []
        self.hung_up: list[bytes] = []
        self.paused: list[tuple[bytes, float]] = []
        self.saved: list[Record] = []
        self.journal = JournalState()
        self.generation = 1
        self.effects_left: int | None = None  # until the broker is killed
        self.exits: list[str] = []
        self.specs: dict[int, WorkerSpec] = {}
        self.discarded: list[str] = []
        self.written: dict[str, bytes] = {}  # files of snapshots that clients send
        self.write_error: str | None = None
        self.environments: set[str] = set()  # that are on the disk
        self.removing: list[str] = []
        self.packages_deleted: list[str] = []
        self.egress_starts = 0
        self.audited: list[Audit] = []
        self.events: list[Event] = []
        self.memory_reading: AvailableMemory | None = None  # what a look at its memory gives
        self.memory_checks = 0
        self.reread_result = RereadResult(error="there is none")  # what reading it again gives
        self.hook_requests: list[RunHooks] = []  # what hooks are asked, the oldest first
        self.setup = CoreConfig(
            limits=Limits(**limits),
            warm_workers=warm,
            idle_exit_ms=idle_exit_ms,
            hibernate_after_ms=hibernate_after_ms,
            started=self.now,
            new_id=lambda: f"id-{next(ids)}",
            monotonic_to_unix=lambda: WALL,
            versions=(("replctl", "1.2.3"),),
            runtimes=runtimes,
            agents=AgentRules(load(agents).config.agents),
            audit=audit,
            emit_all_events=record,
            has_hooks=hooks,
            environments=lambda: frozenset(self.environments),
        )
        self.floor = 0
        self.keys = KeyHistory(["0"])
        self.core = self.build_core()
        self.state = self.core.state
        self.apply(self.core.start(self.now))

    def build_core(self) -> BrokerCore:
        """Build the core of a broker that has not started."""
        return BrokerCore(self.setup)

    # --- effects ---

    def apply(self, effects: list[Effect]) -> None:
        """Apply the effects of a call, and then those of the events that it has caused."""
        self._apply_all(effects)
        if self.core.pending_events and self.effects_left != 0:
            self.apply(self.core.flush_events())

    def _apply_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            if self.effects_left is not None:
                if self.effects_left == 0:
                    return
                self.effects_left -= 1
            if isinstance(effect, ToClient):
                self._on_reply(effect.peer, bytes(effect.body))
            elif isinstance(effect, ToWorker):
                self._deliver(effect.worker, effect.frame)
            elif isinstance(effect, Spawn):
                worker = self.workers[effect.worker] = FakeWorker(self, effect.worker, effect.worker)
                self.spawned.append(effect.worker)
                self.specs[effect.worker] = effect.spec
                if self.auto:
                    worker.send_ready()
            elif isinstance(effect, RunHooks):
                self.hook_requests.append(effect)
            elif isinstance(effect, Kill):
                self.end_process(effect.worker)
                self.killed.append(effect.worker)
            elif isinstance(effect, WriteSnapshot):
                path = f"/shelf/{effect.snapshot}"
                self.written[path] = self.written.get(path, b"") + effect.data
                self.apply(self.core.on_snapshot_written(effect, path, self.write_error, self.now))
            elif isinstance(effect, StartBranch):
                process = self.workers[effect.source].process
                self.branched_from[effect.worker] = (effect.source, effect.checkpoint)
                worker = self.workers[effect.worker] = FakeWorker(self, effect.worker, process)
                if self.auto:
                    worker.send_ready()
            elif isinstance(effect, LeaveWorker):
                self._leave(effect.worker)
            elif isinstance(effect, DeleteSnapshot):
                self.discarded.append(effect.path)
            elif isinstance(effect, Audit):
                self.audited.append(effect)
            elif isinstance(effect, PublishEvent):
                self._on_event(decode_declared(effect))
            elif isinstance(effect, DeleteEnvironment):
                self.removing.append(effect.environment)
            elif isinstance(effect, DeletePackages):
                self.packages_deleted.append(effect.session)
            elif isinstance(effect, StartEgress):
                self.egress_starts += 1
            elif isinstance(effect, RereadConfig):
                self.apply(self.core.on_config_reread(self.reread_result, effect.peer, effect.request_id, self.now))
            elif isinstance(effect, MeasureMemory):
                self.memory_checks += 1
                if self.memory_reading is not None:
                    self._apply_all(self.core.on_memory_measured(self.memory_reading, self.now))
            elif isinstance(effect, Log):
                self.log_lines.append(effect.text)
            elif isinstance(effect, CloseConnection | Disconnect):
                self.hung_up.append(effect.peer)
            elif isinstance(effect, PauseReading):
                self.paused.append((effect.peer, effect.until))
            elif isinstance(effect, SaveRecords):
                for record in effect.records:
                    self.saved.append(record)
                    self.journal.add(record)
            else:
                assert isinstance(effect, StopBroker)
                self.exits.append(effect.why)

    def end_process(self, process: int) -> None:
        """End a process, and the workers that it serves."""
        self.processes.discard(process)
        self.workers = {number: each for number, each in self.workers.items() if each.process != process}
        self.leaving = {number: each for number, each in self.leaving.items() if each.process != process}

    def _leave(self, number: int) -> None:
        """End a worker, or once it has connected."""
        worker = self.workers.pop(number, None) or self.leaving.pop(number, None)
        if worker is not None and not worker.is_connected:
            self.leaving[number] = worker

    def finish_removal(self, error: str | None = None) -> None:
        """Report that the first environment to be removed is removed, or why it is not."""
        environment = self.removing.pop(0)
        if error is None:
            self.environments.discard(environment)
        self.apply(self.core.on_environment_removed(environment, error, self.now))

    def _on_event(self, event: Event) -> None:
        self.events.append(event)

    def event_types(self, *, of: str | None = None) -> list[str]:
        """Return the types of all events so far, of one session or of all."""
        return [str(event.__struct_config__.tag) for event in self.events if of in (None, event.session)]

    def _on_reply(self, peer: bytes, body: bytes) -> None:
        answer = _decode(body)
        self.received.append((peer, answer))
        self.replies.setdefault(answer["id"], []).append(answer)

    def _deliver(self, number: int, frame: bytes) -> None:
        worker = self.workers.get(number)
        if worker is None:  # died on the way: a real frame is dropped as well
            return
        header = unpack(frame)
        worker.received.append((header, _decode(frame[HEADER_BYTES:])))
        if header.kind == FrameKind.RESUME:
            worker.rolled_back = None
        elif header.kind == FrameKind.ADOPT:
            worker.on_adopt(header)
        if self.auto and header.kind == FrameKind.ADOPT:
            worker.send_adopted()
        if self.auto and header.kind == FrameKind.ASSIGN:
            worker.send_assigned()
        if header.kind == FrameKind.CANCEL:
            worker.on_cancel()

    def send_worker_frame(self, number: int, frame: bytes) -> None:
        """Give the core a frame of a worker, which may be dead by now."""
        self.apply(self.core.handle_worker_frame(number, frame, self.now))

    # --- clients ---

    def send(self, op: str, peer: bytes = b"p1", id: str | None = None, **fields: Any) -> str:
        """Send a request (`wait_ms` is `wait-ms` on the wire) and return its id."""
        request_id = id or f"r{next(self._numbers)}"
        kebab = {key.replace("_", "-"): value for key, value in fields.items() if value is not None}
        self.send_raw(_encode({"id": request_id, "op": op} | kebab), peer)
        return request_id

    def send_raw(self, body: bytes, peer: bytes = b"p1") -> None:
        """Send any bytes."""
        if not self.core.has_identity(peer):
            self.core.set_identity(peer, "self")
        self.apply(self.core.handle_request(peer, body, self.now))

    def disconnect(self, peer: bytes = b"p1") -> None:
        """End a client's connection."""
        self.apply(self.core.on_disconnect(peer, self.now))

    def eval(self, session: str | None = "work", code: str = "1", **fields: Any) -> str:
        """Send an eval; the session is opened when there is none."""
        named = {} if session is None else {"session": session, "if-missing": "create"}
        return self.send("eval", code=code, **(named | fields))

    def allow_and_end(self, host: str) -> None:
        """Have every session get a list of hosts that may grow, allow a session one more, and end that."""
        listed = SandboxStatus(policy=Policy(network="list"))
        self.state.config = dataclasses.replace(self.state.config, sandbox=listed, more_hosts="allow")
        for hosts in ([host], []):
            self.request("allow-hosts", session="work", hosts=hosts)

    def final_reply(self, request_id: str) -> Answer:
        """Return the final reply to a request. There must be one, and it must be the last."""
        *before, last = self.replies.get(request_id, [{}])
        assert "done" in last.get("status", []), f"{request_id} has no end: {last}"
        assert not any("done" in answer.get("status", []) for answer in before)
        return last

    def request(self, op: str, peer: bytes = b"p1", **fields: Any) -> Answer:
        """Send a request and return its final reply, which comes at once, or after the pause of a delayed error."""
        asked = self.send(op, peer, **fields)
        if self.is_pending(asked):
            self.wait(0.1)
        return self.final_reply(asked)

    def is_pending(self, request_id: str) -> bool:
        """Return whether a request has no final reply yet."""
        return not any("done" in answer.get("status", []) for answer in self.replies.get(request_id, []))

    def answer_hook(self, verdict: Verdict, hook: str | None = "guard/words") -> RunHooks:
        """Give a verdict on the oldest eval that waits for hooks."""
        asked = self.hook_requests.pop(0)
        self.apply(self.core.handle_verdict(asked.route, asked.question, verdict, hook, self.now))
        return asked

    # --- sessions and workers ---

    def session(self, name: str = "work") -> Session:
        """Return the core's record of a session."""
        return next(each for each in self.state.sessions if name in (each.id, each.name))

    def saved_sessions(self) -> list[str]:
        """Return the sessions that are open according to the saved records."""
        return [each.name or each.id for each in self.journal.build().sessions if each.open]

    # --- the next broker ---

    def saved_state(self) -> SavedState:
        """Return what the next broker reads."""
        saved = self.journal.build(
            self.floor, self.generation, None, max([*self.spawned, *self.branched_from], default=0), self.keys
        )
        hosts = [WorkerRecord(each, "t" if each in self.workers else "", "h") for each in self.processes]
        return saved._replace(workers=[*hosts, *map(self._branch_record, self._branches())])

    def _branches(self) -> list[FakeWorker]:
        known = (self.workers | self.leaving).values()
        return [each for each in known if each.number != each.process]

    @staticmethod
    def _branch_record(worker: FakeWorker) -> WorkerRecord:
        return WorkerRecord(worker.number, "t", process=worker.process)

    def restart(self, *, come_back: bool = True) -> list[str]:
        """Kill the broker, start the next, and return the sessions that it calls lost.

        Workers without a session end with the broker; of the others the next one is told that they are alive.
        """
        saved, self.generation, self.effects_left = self.saved_state(), self.generation + 1, None
        self._end_unassigned()
        self.hook_requests.clear()
        self.discarded += self.written  # the next broker removes the files of a dead one
        self.core = self.build_core()
        self.state = self.core.state
        alive = frozenset(each.worker for each in saved.workers if each.process_number in self.processes)
        lost = self.core.restore(saved, alive, self.now)
        self.journal = JournalState()
        self.floor, records = self.core.export()
        self.keys = self.core.export_keys()
        for record in records:
            self.journal.add(record)
        self.on_restored(saved)
        self.apply(self.core.start(self.now))
        wanted = self.core.scheduler.pool.workers
        for process in self.processes - {each.process for each in wanted.values()}:
            self.end_process(process)
        for number in self.workers.keys() - wanted.keys():
            self._leave(number)
        if come_back:
            self.come_back()
        return lost

    def _end_unassigned(self) -> None:
        """End the workers that have no session, as they do when they lose the broker, and the processes of such alone."""
        for worker in (self.workers | self.leaving).values():
            worker.is_connected = False
        assigned = {number for number, each in (self.workers | self.leaving).items() if each.frames(FrameKind.ASSIGN)}
        self.workers = {number: each for number, each in self.workers.items() if number in assigned}
        self.leaving = {number: each for number, each in self.leaving.items() if number in assigned}
        serving = {each.process for each in (self.workers | self.leaving).values()}
        for process in self.processes - serving:
            self.end_process(process)

    def on_restored(self, saved: SavedState) -> None:
        """Look at a broker that has taken over what was saved, before it does anything."""

    def come_back(self) -> None:
        """Let every worker connect to the broker."""
        for worker in [*self.workers.values(), *self.leaving.values()]:
            if worker.frames(FrameKind.ASSIGN):
                worker.come_back()
        assert not self.leaving, "a worker whose session is over was not told"

    def session_of(self, owner: str, name: str) -> Session:
        """Return the core's record of a session, by owner and name."""
        return next(each for each in self.state.sessions if (each.owner, each.name) == (owner, name))

    @staticmethod
    def build_request(op: str, **fields: Any) -> Request:
        """Build a typed request."""
        return to_request({"id": "r", "op": op} | {key: value for key, value in fields.items() if value is not None})

    def worker(self, name: str = "work") -> FakeWorker:
        """Return the worker of a session."""
        number = self.session(name).worker
        assert number is not None
        return self.workers[number]

    def worker_running(self, request_id: str) -> FakeWorker | None:
        """Return the worker that runs an eval now."""
        return next((worker for worker in self.workers.values() if self._is_running_on(worker, request_id)), None)

    def _is_running_on(self, worker: FakeWorker, request_id: str) -> bool:
        asks = worker.frames(FrameKind.REQUEST)
        return any(body["id"] == request_id and header.route in self.state.routes for header, body in asks)

    def running_evals(self, *request_ids: str) -> list[str]:
        """Return those of the evals that run now."""
        return [each for each in request_ids if self.worker_running(each) is not None]

    def finish(self, request_id: str, outcome: int = Outcome.OK, **fields: Any) -> Answer:
        """Finish a running eval, and return the final reply."""
        worker = self.worker_running(request_id)
        assert worker is not None, f"{request_id} does not run"
        worker.reply(request_id, outcome, **fields)
        return self.final_reply(request_id)

    def finish_abandoned(self, request_id: str) -> None:
        """Finish a running eval whose client has stopped waiting."""
        worker = self.worker_running(request_id)
        assert worker is not None, f"{request_id} does not run"
        worker.reply(request_id)

    def open(self, name: str = "work", **fields: Any) -> Answer:
        """Open a session, and return the reply."""
        return self.request("new-session", name=name, **fields)

    # --- time ---

    def wait(self, seconds: float, *, beats: bool = True) -> None:
        """Let time pass, with a tick at each deadline and heartbeats of all workers."""
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            if beats:
                self.beat()
            self.apply(self.core.tick(self.now))
        self.now = until

    def beat(self) -> None:
        """Send a heartbeat of every worker."""
        for worker in list(self.workers.values()):
            worker.send(FrameKind.HEARTBEAT)

    def cancels(self, name: str = "work") -> list[Any]:
        """Return the interrupts that reached the session's worker."""
        return [body for _, body in self.worker(name).frames(FrameKind.CANCEL)]

    def is_idle(self) -> bool:
        """Return whether nothing is left that could leak once every request has its final reply."""
        state = self.state
        sessions = list(state.sessions)
        held = [
            ask for session in sessions for ask in (*session.inflight.values(), *session.deferred, *session.waiters)
        ]
        left = (
            state.semaphore.in_use,
            len(state.semaphore),
            state.quotas.total(QUEUE),
            len(state.routes),
            len(state.by_request),
        )
        return left == (0, 0, 0, 0, 0) and not held and not any(session.is_occupied for session in sessions)

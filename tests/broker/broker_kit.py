"""A core on a table: its effects are done against workers of paper, its answers are written down.

Time is `table.now` and moves when `table.wait` says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec

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
    SessionRecord,
    Spawn,
    Spec,
    ToClient,
    ToWorker,
)
from replbroker.core.memory import MemoryLeft
from replbroker.core.quotas import QUEUE
from replbroker.core.reload import Reread
from replbroker.core.session import Session
from replbroker.core.state import Setup
from replwire import events
from replwire.agents import Agents
from replwire.config import load
from replwire.events import Event
from replwire.ext.verdicts import Verdict
from replwire.limits import Limits
from replwire.link import HEADER_BYTES, Claimed, Dumped, Gone, Header, Kind, Outcome, pack, unpack
from replwire.ops import Request
from replwire.replies import LeftBehind
from replwire.requests import typed

Answer = dict[str, Any]
WALL = 1_700_000_000.0  # Unix time of the table's moment zero
_encode = msgspec.json.encode
_decode = msgspec.json.decode


def declared(effect: Happened) -> Event:
    """An event as every reader decodes it. Fails for one that the table of events does not have, or has differently."""
    event = events.decode(effect.body)
    assert events.encode(event) == effect.body, "an event has fields that are not declared"
    assert event.v == events.VERSION
    assert (event.emitter == events.BROKER) != isinstance(event, events.ExtensionLoaded | events.ExtensionError)
    assert event.canonical == bool(event.seq)
    assert effect.book in (None, events.BROKER if event.session is None else event.session)
    return event


class Worker:
    """One worker: what it was told, and the frames that it can send."""

    def __init__(self, table: Table, number: int) -> None:
        self.table = table
        self.number = number
        self.told: list[tuple[Header, Any]] = []

    def says(self, kind: int, body: object = b"", **header: int) -> None:
        """Send any frame."""
        raw = body if isinstance(body, bytes) else _encode(body)
        self.table.worker_says(self.number, pack(kind, raw, **header))

    def ready(self) -> None:
        self.says(Kind.READY)

    def claimed(self, error: str | None = None) -> None:
        """Answer the last CLAIM."""
        self.says(Kind.CLAIMED, Claimed(error), epoch=self.heard(Kind.CLAIM)[-1][0].epoch)

    def dumped(self, request_id: str, path: str = "/shelf/1", count: int = 2, left: Sequence[str] = ()) -> None:
        """The names of its session are in a file, for a clone."""
        header = self.asked(request_id)
        body = Dumped(path=path, count=count, bytes=10, left_behind=[LeftBehind(name, "no") for name in left])
        self.says(Kind.DUMPED, body, epoch=header.epoch, route=header.route)

    def gone(self, cause: str) -> None:
        """Its interpreter died."""
        self.says(Kind.GONE, Gone(cause))

    def dies(self, cause: str = "killed by SIGKILL") -> None:
        """The process itself is dead."""
        table = self.table
        table.workers.pop(self.number, None)
        table.do(table.core.worker_gone(self.number, cause, table.now))

    def heard(self, kind: int) -> list[tuple[Header, Any]]:
        """Frames of this kind that it was sent, with their bodies."""
        return [(header, body) for header, body in self.told if header.kind == kind]

    def op(self, request_id: str) -> str:
        """What it was asked under this id."""
        return str(next(body["op"] for _, body in self.heard(Kind.ASK) if body["id"] == request_id))

    def asked(self, request_id: str) -> Header:
        """The header under which it was given this request."""
        return next(header for header, body in self.heard(Kind.ASK) if body["id"] == request_id)

    def answers(self, request_id: str, outcome: int = Outcome.OK, kind: int = Kind.SAY, **fields: Any) -> None:
        """Say something for a request, its end unless `outcome` is NONE."""
        header = self.asked(request_id)
        body = {"id": request_id, "worker": self.number, "epoch": header.epoch} | fields
        if outcome != Outcome.NONE:
            body.setdefault("status", ["done"])
        self.says(kind, body, outcome=outcome, epoch=header.epoch, eval=header.eval, route=header.route)


class Table:
    """The core, its clients and its workers."""

    def __init__(
        self,
        *,
        warm: int = 0,
        idle_exit_ms: int = 0,
        auto: bool = True,
        agents: str = "",
        audit: bool = False,
        record: bool = True,
        runtimes: tuple[str, ...] = ("python",),
        hooks: bool = False,
        **limits: int,
    ) -> None:
        self.now = 1000.0
        self.auto = auto  # workers become ready, and take any session, at once
        ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self.workers: dict[int, Worker] = {}
        self.spawned: list[int] = []
        self.killed: list[int] = []
        self.answers: dict[str, list[Answer]] = {}
        self.received: list[tuple[bytes, Answer]] = []
        self.notes: list[str] = []
        self.hung_up: list[bytes] = []
        self.paused: list[tuple[bytes, float]] = []
        self.saved: list[SessionRecord] = []
        self.exits: list[str] = []
        self.specs: dict[int, Spec] = {}
        self.discarded: list[str] = []
        self.environments: set[str] = set()  # that are on the disk
        self.removing: list[str] = []
        self.audited: list[Audit] = []
        self.happened: list[Event] = []
        self.machine: MemoryLeft | None = None  # what a look at its memory gives
        self.looks = 0
        self.config = Reread(error="there is none")  # what reading it again gives
        self.judges: list[Judge] = []  # what hooks are asked, the oldest first
        setup = Setup(
            limits=Limits(**limits),
            warm_workers=warm,
            idle_exit_ms=idle_exit_ms,
            started=self.now,
            new_id=lambda: f"id-{next(ids)}",
            wall=lambda: WALL,
            versions=(("replctl", "1.2.3"),),
            runtimes=runtimes,
            agents=Agents(load(agents).config.agents),
            audit=audit,
            record=record,
            hooks=hooks,
            environments=lambda: frozenset(self.environments),
        )
        self.core = Core(setup)
        self.state = self.core.state
        self.do(self.core.start(self.now))

    # --- effects ---

    def do(self, effects: list[Effect]) -> None:
        """Do what the core wants done."""
        for effect in effects:
            if isinstance(effect, ToClient):
                self._told(effect.peer, bytes(effect.body))
            elif isinstance(effect, ToWorker):
                self._pass_on(effect.worker, effect.frame)
            elif isinstance(effect, Spawn):
                worker = self.workers[effect.worker] = Worker(self, effect.worker)
                self.spawned.append(effect.worker)
                self.specs[effect.worker] = effect.spec
                if self.auto:
                    worker.ready()
            elif isinstance(effect, Judge):
                self.judges.append(effect)
            elif isinstance(effect, Kill):
                self.workers.pop(effect.worker, None)
                self.killed.append(effect.worker)
            elif isinstance(effect, Discard):
                self.discarded.append(effect.path)
            elif isinstance(effect, Audit):
                self.audited.append(effect)
            elif isinstance(effect, Happened):
                self._heard_of(declared(effect))
            elif isinstance(effect, RemoveEnvironment):
                self.removing.append(effect.environment)
            elif isinstance(effect, RereadConfig):
                self.do(self.core.reread(self.config, effect.peer, effect.request_id, self.now))
            elif isinstance(effect, LookAtMemory):
                self.looks += 1
                if self.machine is not None:
                    self.do(self.core.machine_seen(self.machine, self.now))
            elif isinstance(effect, Note):
                self.notes.append(effect.text)
            elif isinstance(effect, HangUp | Disconnect):
                self.hung_up.append(effect.peer)
            elif isinstance(effect, Pause):
                self.paused.append((effect.peer, effect.until))
            elif isinstance(effect, SaveSession):
                self.saved.append(effect.record)
            else:
                assert isinstance(effect, Exit)
                self.exits.append(effect.why)
        if self.core.untold:
            self.do(self.core.rest())

    def removed(self, error: str | None = None) -> None:
        """The environment that was to be removed first is, or is not."""
        environment = self.removing.pop(0)
        if error is None:
            self.environments.discard(environment)
        self.do(self.core.environment_removed(environment, error, self.now))

    def _heard_of(self, event: Event) -> None:
        self.happened.append(event)

    def types(self, *, of: str | None = None) -> list[str]:
        """Types of what happened until now, of one session or of all."""
        return [str(event.__struct_config__.tag) for event in self.happened if of in (None, event.session)]

    def _told(self, peer: bytes, body: bytes) -> None:
        answer = _decode(body)
        self.received.append((peer, answer))
        self.answers.setdefault(answer["id"], []).append(answer)

    def _pass_on(self, number: int, frame: bytes) -> None:
        worker = self.workers.get(number)
        if worker is None:  # died on the way: a real frame is dropped as well
            return
        header = unpack(frame)
        worker.told.append((header, _decode(frame[HEADER_BYTES:])))
        if self.auto and header.kind == Kind.CLAIM:
            worker.claimed()

    def worker_says(self, number: int, frame: bytes) -> None:
        """A frame of a worker, which may be dead by now."""
        self.do(self.core.worker_said(number, frame, self.now))

    # --- clients ---

    def ask(self, op: str, peer: bytes = b"p1", id: str | None = None, **fields: Any) -> str:
        """Send a request (`wait_ms` is `wait-ms` on the wire) and return its id."""
        request_id = id or f"r{next(self._numbers)}"
        kebab = {key.replace("_", "-"): value for key, value in fields.items() if value is not None}
        self.hear(_encode({"id": request_id, "op": op} | kebab), peer)
        return request_id

    def hear(self, body: bytes, peer: bytes = b"p1") -> None:
        """Send any bytes."""
        if not self.core.knows(peer):
            self.core.meet(peer, "self")
        self.do(self.core.hear(peer, body, self.now))

    def leaves(self, peer: bytes = b"p1") -> None:
        """A client's connection has ended."""
        self.do(self.core.disconnected(peer, self.now))

    def eval(self, session: str | None = "work", code: str = "1", **fields: Any) -> str:
        """Send an eval; the session is opened when there is none."""
        named = {} if session is None else {"session": session, "if-missing": "create"}
        return self.ask("eval", code=code, **(named | fields))

    def end(self, request_id: str) -> Answer:
        """The terminal answer of a request. There must be one, and it must be the last."""
        *before, last = self.answers.get(request_id, [{}])
        assert "done" in last.get("status", []), f"{request_id} has no end: {last}"
        assert not any("done" in answer.get("status", []) for answer in before)
        return last

    def said(self, op: str, peer: bytes = b"p1", **fields: Any) -> Answer:
        """Send a request that is answered at once, or refused after a pause, and return its answer."""
        asked = self.ask(op, peer, **fields)
        if self.pending(asked):
            self.wait(0.1)
        return self.end(asked)

    def pending(self, request_id: str) -> bool:
        """Whether the request has not ended."""
        return not any("done" in answer.get("status", []) for answer in self.answers.get(request_id, []))

    def judge(self, verdict: Verdict, hook: str | None = "guard/words") -> Judge:
        """Let the hooks answer what they were asked first."""
        asked = self.judges.pop(0)
        self.do(self.core.judged(asked.route, asked.question, verdict, hook, self.now))
        return asked

    # --- sessions and workers ---

    def session(self, name: str = "work") -> Session:
        """What the core knows of a session."""
        return next(each for each in self.state.sessions if name in (each.id, each.name))

    def listed(self) -> list[str]:
        """Sessions that are open by what was saved last of each."""
        return [each.name or each.id for each in {each.id: each for each in self.saved}.values() if each.open]

    def session_of(self, owner: str, name: str) -> Session:
        """The same, of one of several owners."""
        return next(each for each in self.state.sessions if (each.owner, each.name) == (owner, name))

    @staticmethod
    def request(op: str, **fields: Any) -> Request:
        """A request as the core sees it."""
        return typed({"id": "r", "op": op} | {key: value for key, value in fields.items() if value is not None})

    def worker(self, name: str = "work") -> Worker:
        """The worker that a session has."""
        number = self.session(name).worker
        assert number is not None
        return self.workers[number]

    def runner(self, request_id: str) -> Worker | None:
        """The worker that runs this eval now."""
        return next((worker for worker in self.workers.values() if self._runs(worker, request_id)), None)

    def _runs(self, worker: Worker, request_id: str) -> bool:
        asks = worker.heard(Kind.ASK)
        return any(body["id"] == request_id and header.route in self.state.routes for header, body in asks)

    def running(self, *request_ids: str) -> list[str]:
        """Those of the evals that run now."""
        return [each for each in request_ids if self.runner(each) is not None]

    def finish(self, request_id: str, outcome: int = Outcome.OK, **fields: Any) -> Answer:
        """Let the eval that runs under this id end, and return the answer."""
        worker = self.runner(request_id)
        assert worker is not None, f"{request_id} does not run"
        worker.answers(request_id, outcome, **fields)
        return self.end(request_id)

    def finish_quietly(self, request_id: str) -> None:
        """The same for an eval whose client stopped waiting."""
        worker = self.runner(request_id)
        assert worker is not None, f"{request_id} does not run"
        worker.answers(request_id)

    def open(self, name: str = "work", **fields: Any) -> Answer:
        """Open a session that is ready."""
        return self.said("new-session", name=name, **fields)

    # --- time ---

    def wait(self, seconds: float, *, beats: bool = True) -> None:
        """Let time pass, with a tick at every moment that something is due; workers beat meanwhile."""
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            if beats:
                self.beat()
            self.do(self.core.tick(self.now))
        self.now = until

    def beat(self) -> None:
        """Every worker says that it lives."""
        for worker in list(self.workers.values()):
            worker.says(Kind.BEAT)

    def cancels(self, name: str = "work") -> list[Any]:
        """Interrupts that reached the session's worker."""
        return [body for _, body in self.worker(name).heard(Kind.CANCEL)]

    def quiet(self) -> bool:
        """Whether nothing is left that could leak once everything is answered."""
        state = self.state
        sessions = list(state.sessions)
        held = [ask for session in sessions for ask in (*session.asks.values(), *session.held, *session.waiters)]
        left = (state.gate.taken, len(state.gate), state.quotas.total(QUEUE), len(state.routes), len(state.by_request))
        return left == (0, 0, 0, 0, 0) and not held and not any(session.occupied for session in sessions)

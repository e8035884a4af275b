"""The invariants of the core: a harness that fails at the moment when one is violated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from core_harness import CoreHarness
from replbroker.core.engine import BrokerCore
from replbroker.core.limits.fair_semaphore import FairSemaphore
from replbroker.core.limits.quotas import (
    CONNECTIONS,
    IDEMPOTENCY_KEYS,
    QUEUE,
    READS,
    RESOURCES,
    SESSIONS,
    SLOTS,
    SUBSCRIPTIONS,
    Holder,
)
from replbroker.core.records import SavedState, SessionRecord
from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.session import ADOPTING, BUSY, HIBERNATED, IDLE, STARTING, TRANSITIONS, VACANT, Session
from replbroker.core.state import BrokerState
from replbroker.journal_lines import JournalState
from replwire.events import EvalAccepted, EvalFinished, Event, SessionClosed
from replwire.link import FrameKind, unpack

STARTING_AT_ONCE = 8
LIMITS = {
    "max_concurrent_evals": 3,
    "short_eval_slots": 1,
    "max_sessions": 6,
    "max_waiting_reads_total": 12,
    "max_subscriptions_total": 12,
    "max_queued_evals": 4,
    "max_queued_total": 8,
    "max_history": 5,
    "max_waiting_reads": 4,
    "max_idempotency_keys": 3,
    "rate_limit_per_min": 0,
    "max_eval_time_ms": 10_000,
    "max_job_time_ms": 30_000,
    "interrupt_grace_ms": 1000,
    "max_wait_ms": 8000,
    "max_queue_wait_ms": 20_000,
    "ask_timeout_ms": 3000,
    "worker_start_ms": 5000,
    "worker_silence_ms": 30_000,
    "session_idle_timeout_ms": 60_000,
    "close_grace_ms": 4000,
    "hook_time_ms": 700,
    "max_memory_bytes": 1000,
    "max_identity_memory_bytes": 800,
    "min_free_memory_bytes": 100,
}
WARM = 1


class FairnessCheckingSemaphore(FairSemaphore[EvalTask]):
    """A semaphore that counts how often each waiting item was passed over, and by whom.

    Identities are compared with identities, and agents with agents of the same identity.
    """

    def __init__(self, state: BrokerState) -> None:
        super().__init__(state.quotas, state.semaphore.capacity, state.semaphore.long_capacity)
        self.passed_over: dict[str | Holder, Counter[str | Holder]] = {}

    def _next(self) -> EvalTask | None:
        could = {turn.holder for turn in self.count_waiting() if self.has_room(turn)}
        item = super()._next()
        if item is None:
            assert not could, "somebody waits beside a slot that is free for it"
            return None
        served = item.slot_request.holder
        self._count_served(served.identity, {holder.identity for holder in could})
        self._count_served(served, {holder for holder in could if holder.identity == served.identity})
        return item

    def _count_served(self, who: str | Holder, could: Iterable[str | Holder]) -> None:
        self.passed_over.pop(who, None)
        for other in could:
            if other != who:
                counts = self.passed_over.setdefault(other, Counter())
                counts[who] += 1
                assert counts[who] == 1, f"{who} came twice before {other}"

    def _drop_empty(self, identity: str, agent: str) -> None:
        super()._drop_empty(identity, agent)
        waiting = {turn.holder for turn in self.count_waiting()}
        who: set[str | Holder] = waiting | {holder.identity for holder in waiting}
        self.passed_over = {each: counts for each, counts in self.passed_over.items() if each in who}


class CheckedHarness(CoreHarness):
    """A harness whose clients and workers check everything that reaches them."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []  # what workers said lately, to be said again
        self.done: set[str] = set()
        self.disconnected: set[bytes] = set()
        self.senders: dict[str, bytes] = {}
        self.last_eval: dict[str, int] = {}  # by session
        self.seqs: Counter[str | None] = Counter()
        self.unfinished: set[tuple[str | None, int]] = set()  # evals whose end no event has told
        self.closed: set[str | None] = set()
        self.speaker: tuple[int, int] | None = None  # the worker that speaks, and its session's epoch
        self.memory_reported_at = 0.0
        super().__init__(auto=False, warm=WARM, hooks=True, checkpoints=True, hibernate_after_ms=20_000, **LIMITS)

    def build_core(self) -> BrokerCore:
        core = super().build_core()
        core.state.semaphore = FairnessCheckingSemaphore(core.state)
        return core

    def on_restored(self, saved: SavedState) -> None:
        """Check that nothing is forgotten that was accepted, and nothing runs that has ended."""
        self.seqs.clear()
        self.unfinished.clear()
        kept = {session.id: session for session in self.state.sessions}
        self.closed -= kept.keys()
        self.seqs.update(dict.fromkeys((each.id for each in saved.sessions), saved.generation * 10**9))
        for each in saved.evals:
            if each.session in kept:
                task = kept[each.session].find_eval(each.eval_id)
                assert (task is not None and task.state is not EvalTask.DONE) == (not each.progress.status)
                if not each.progress.status:
                    self.unfinished.add((each.session, each.eval_id))

    @property
    def is_memory_check_due(self) -> bool:
        """Return whether a report of memory is so recent that the core may not have summed up yet."""
        return self.now <= self.memory_reported_at + 0.05

    def _on_event(self, event: Event) -> None:
        assert not event.canonical or event.seq == self.seqs[event.session] + 1, (
            f"an event is missing: {event} after {self.seqs[event.session]}: {self.log_lines[-3:]} {self.core.pending_events}"
        )
        self.seqs[event.session] = max(self.seqs[event.session], event.seq)
        if isinstance(event, EvalAccepted):
            self.unfinished.add((event.session, event.eval))
        elif isinstance(event, EvalFinished):
            self.unfinished.remove((event.session, event.eval))
        assert event.session not in self.closed, "something happened to a session after its end"
        if isinstance(event, SessionClosed):
            self.closed.add(event.session)

    def send(self, op: str, peer: bytes = b"p1", id: str | None = None, **fields: Any) -> str:
        self.senders[f"r{len(self.senders) + 1}"] = peer
        return super().send(op, peer, id or f"r{len(self.senders)}", **fields)

    def send_worker_frame(self, number: int, frame: bytes) -> None:
        self.frames = [*self.frames[-30:], (number, frame)]
        if unpack(frame).kind == FrameKind.HEARTBEAT:
            self.memory_reported_at = self.now
        worker = self.core.scheduler.pool.workers.get(number)
        before, self.speaker = self.speaker, None
        if worker is not None and worker.session is not None:
            self.speaker = (number, worker.session.epoch)
        super().send_worker_frame(number, frame)
        self.speaker = before

    def _on_reply(self, peer: bytes, body: bytes) -> None:
        super()._on_reply(peer, body)
        answer = self.received[-1][1]
        request_id = answer["id"]
        assert self.senders.get(request_id, peer) == peer, f"{request_id} answered to somebody else"
        assert peer not in self.disconnected, f"{request_id} answered to nobody"
        assert request_id not in self.done, f"{request_id} goes on after its end: {answer}"
        if request_id and "done" in answer.get("status", []):
            self.done.add(request_id)
        assert "lie" not in answer, "a frame of another epoch or worker was believed"
        assert "worker" not in answer or (answer["worker"], answer["epoch"]) == self.speaker, "said by the past"

    def _deliver(self, number: int, frame: bytes) -> None:
        super()._deliver(number, frame)
        result = self.workers[number].received if number in self.workers else []
        if result and result[-1][1].get("op") == "eval":
            session = self.workers[number].frames(FrameKind.ASSIGN)[0][1]["session"]
            number_of_eval = result[-1][0].eval
            assert number_of_eval > self.last_eval.get(session, 0), "an eval runs out of turn"
            self.last_eval[session] = number_of_eval


def check_journal(harness: CheckedHarness) -> None:
    """Check that what is saved is what the broker would save now."""
    saved, exact = harness.journal.build(), JournalState()
    for record in harness.core.export()[1]:
        exact.add(record)
    wanted = exact.build()
    sessions = {each.id: each for each in saved.sessions if each.open}
    for session in wanted.sessions:
        if session.open:
            assert msgspec.to_builtins(_comparable(sessions.pop(session.id))) == msgspec.to_builtins(
                _comparable(session)
            )
    assert not sessions, "a session is saved that is not open"
    evals = {(each.session, each.eval_id): each for each in saved.evals}
    for each in wanted.evals:
        assert evals[each.session, each.eval_id].progress == each.progress


def _comparable(record: SessionRecord) -> SessionRecord:
    """Return a record without what changes at every eval, which the records of evals have."""
    assert record.details is not None
    return msgspec.structs.replace(record, details=msgspec.structs.replace(record.details, eval_count=0))


def check(harness: CheckedHarness) -> None:
    """Check every invariant between two steps."""
    check_journal(harness)
    state = harness.state
    sessions = list(state.sessions)
    _slots(harness, sessions)
    _charges(harness, sessions)
    jobs = [job for session in sessions for job in (session.running, *session.waiting_evals()) if job is not None]
    asks = {route: ask for session in sessions for route, ask in session.inflight.items()}
    assert state.routes == {job.route: job for job in jobs} | asks
    waited_for = {(job.peer, job.request_id): job for job in jobs if job.peer is not None}
    assert state.by_request == waited_for
    unfinished = {(job.session.id, job.eval_id) for job in jobs}
    assert harness.unfinished == unfinished, harness.unfinished ^ unfinished
    for job in jobs:
        assert job.epoch == job.session.epoch
        is_held = job.state is EvalTask.STARTING or (job.state is EvalTask.RUNNING and job.session.state == ADOPTING)
        assert (job.deadline is None) == is_held
    assert all(ask.deadline is not None and ask.deadline.action is not None for ask in asks.values())
    for session in sessions:
        _session(session)
    _workers(harness, sessions)
    assert len(state.idempotency) <= LIMITS["max_idempotency_keys"]
    assert len(sessions) <= LIMITS["max_sessions"]
    starting = sum(session.start_deadline is not None for session in [*sessions, *_replacements(sessions)])
    assert len(state.deadlines) <= 4 + 4 * len(jobs) + len(asks) + starting + len(state.connections.silent) + len(
        harness.core.scheduler.pool.workers
    )
    errors = [note for note in harness.log_lines if "internal error" in note]
    assert not errors, errors[0]


def _replacements(sessions: list[Session]) -> list[Session]:
    """Return the replacements of sessions that change their environment."""
    return [session.replacement for session in sessions if session.replacement is not None]


def _slots(harness: CheckedHarness, sessions: list[Session]) -> None:
    semaphore = harness.state.semaphore
    assert semaphore.in_use == sum(session.running is not None for session in sessions) <= semaphore.capacity
    assert len(semaphore) == sum(session.next_up is not None for session in sessions)
    assert not any(map(semaphore.has_room, semaphore.count_waiting())), (
        "somebody waits beside a slot that is free for it"
    )
    assert (
        semaphore.long_in_use
        == sum(each.running is not None and each.running.slot_request.long for each in sessions)
        <= 2
    )


def _charges(harness: CheckedHarness, sessions: list[Session]) -> None:
    """Check that charges match usage, and that no identity exceeds its quota."""
    state, quotas = harness.state, harness.state.quotas
    running = [session.running.slot_request.holder for session in sessions if session.running is not None]
    waiting = [job.slot_request.holder for session in sessions for job in session.waiting_evals()]
    asks = [ask.holder for session in sessions for ask in session.inflight.values()]
    listening = [each.holder for each in state.bus.all()]
    for resource, held in (
        (SESSIONS, [session.holder for session in sessions]),
        (SLOTS, running),
        (QUEUE, waiting),
        (READS, asks),
        (SUBSCRIPTIONS, listening),
    ):
        assert quotas.by_holder(resource) == Counter(held), resource.quota
    assert quotas.total(IDEMPOTENCY_KEYS) == len(state.idempotency)
    assert quotas.total(CONNECTIONS) == len(state.connections) == 4
    for resource in RESOURCES:
        for identity in quotas.identities():
            assert quotas.used_by(resource, identity) <= quotas.quota(resource, identity)
        for holder in quotas.by_holder(resource):
            assert quotas.by_holder(QUEUE).get(holder, 0) <= LIMITS["max_queued_evals"]
    assert quotas.total(QUEUE) <= LIMITS["max_queued_total"]


def _session(session: Session) -> None:
    running = session.running
    is_sent = running is not None and running.state is EvalTask.RUNNING
    assert session.state in ((BUSY, ADOPTING) if is_sent else (VACANT, HIBERNATED, STARTING, ADOPTING, IDLE))
    assert session.state != HIBERNATED or (session.hibernated is not None and session.worker is None)
    assert session.hibernated is None or session.state in (HIBERNATED, STARTING)
    assert session.state in {before for before, _ in TRANSITIONS}
    assert session.state != VACANT or (session.worker is None and running is None)
    assert session.state != IDLE or (session.worker is not None and running is None)
    assert (session.state in (STARTING, ADOPTING)) == (session.start_deadline is not None)
    assert session.is_occupied or session.inflight or not session.ephemeral, "an ephemeral session stayed"
    held = session.replacement or (session.queue and session.queue[0].hook_deadline)
    assert running or session.next_up or held or not session.queue, "a queue that nobody serves"
    assert session.worker is None or session.worker_epoch <= session.epoch
    assert running is None or not running.undone, "an eval runs that was undone"
    assert running is None or running.hook_deadline is None, "an eval runs that hooks have not judged"
    ids = [job.eval_id for job in (running, *session.waiting_evals()) if job is not None]
    assert ids == sorted(ids)
    assert len(session.evals) <= LIMITS["max_history"] + len(ids)
    assert len(session.inflight) <= LIMITS["max_waiting_reads"]
    assert all(session.inflight.get(ask.route) is ask for ask in session.deferred)
    assert session.state == STARTING or not session.waiters
    assert session.replacement is None or session.running is None, "an eval runs where its session moves away"
    assert session.snapshot is None or session.state == STARTING
    waiting_ids = {job.eval_id for job in session.waiting_evals()}
    assert session.state in (STARTING, ADOPTING) or {ask.eval_id for ask in session.deferred} <= waiting_ids


def _workers(harness: CheckedHarness, sessions: list[Session]) -> None:
    pool = harness.core.scheduler.pool
    assert pool.workers.keys() == harness.workers.keys(), "a worker is alive that the core does not know, or dead"
    assert {worker.process for worker in pool.workers.values()} == harness.processes, "a process serves nobody"
    for process in harness.processes:
        family = [worker.session for worker in pool.served_by(process) if worker.session is not None]
        assert len({(each.owner, *sorted(each.shares.items())) for each in family}) <= 1, "a family is shared in part"
    counts = pool.count_by_state()
    every = [*sessions, *_replacements(sessions)]
    assert counts["assigned"] == sum(session.worker is not None for session in every)
    assert counts["starting"] <= STARTING_AT_ONCE
    assert counts["warm"] <= WARM + STARTING_AT_ONCE
    used: Counter[str] = Counter()
    for worker in pool.workers.values():
        if worker.session is not None:
            used[worker.session.owner] += worker.usage.memory_bytes
    assert max(used.values(), default=0) <= LIMITS["max_identity_memory_bytes"] or harness.is_memory_check_due, (
        "an identity uses more than it may"
    )
    assert used.total() <= LIMITS["max_memory_bytes"] or harness.is_memory_check_due, (
        "all sessions use more than they may"
    )
    for session in every:
        assert session.worker is None or pool.workers[session.worker].session is session

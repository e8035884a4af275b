"""The takeover of the sessions that the broker before this one had."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

import msgspec

from replbroker.core.effects import Kill, WorkerSpec
from replbroker.core.limits.fair_semaphore import SlotRequest
from replbroker.core.limits.quotas import SESSIONS, Holder
from replbroker.core.limits.time_limits import TimeLimit
from replbroker.core.records import KeyHistory, Record, SavedEval, SavedState, SessionDetails, SessionRecord
from replbroker.core.scheduling.eval_scheduler import EvalScheduler
from replbroker.core.sessions.eval_task import EvalTask, IdempotencyKey
from replbroker.core.sessions.session import ADOPTING, CLOSED, Session
from replbroker.core.sessions.session_registry import NameKey
from replbroker.core.state import BrokerState
from replwire import ops as wire
from replwire.faults import RequestError
from replwire.limits import Limits
from replwire.requests import parse, to_request

_ROUTE_BITS = 40  # of a route are counted by one broker: the bits above them say by which
_MAX_SEQ = 10**9  # of a session's events under one broker; those of the next one are numbered from there on
_MAX_INSTANCES = 100  # brokers whose clients can be told that an eval did not run
_LOST = ["done", "error", "worker-lost"]
_COPIED = (
    "worker_epoch",
    "results_epoch",
    "offered_to",
    "mode",
    "mode_reason",
    "cwd",
    "cwd_needed",
    "cwd_unavailable",
    "env",
    "ephemeral",
    "eval_count",
    "was_ready",
    "lost_cause",
    "executable",
    "snapshot",
    "hibernated",
    "has_packages",
    "packages_of",
    "branch_of",
)


class Restoration:
    """Rebuilds sessions and evals from records, in a broker that has not started."""

    def __init__(self, state: BrokerState, scheduler: EvalScheduler) -> None:
        self._state = state
        self._scheduler = scheduler
        self._closed: dict[str, Session] = {}
        self._tasks: list[EvalTask] = []
        self._first_seq = 0
        self._processes: dict[int, int] = {}  # of living workers

    def restore(self, saved: SavedState, alive: Collection[int], now: float) -> list[str]:
        """Take over records, so that sessions go on, and names keep their epochs and the causes of their ends.

        A session goes on when its worker is alive, or when it had none. Its evals keep their routes, so what a worker
        still has to say about one finds it.

        Args:
            saved: What the broker before this one has saved.
            alive: The numbers of its workers that are alive.
            now: Seconds, monotonic.

        Returns:
            The sessions that are lost, as the broker's own user calls them.
        """
        state = self._state
        state.new_route = itertools.count((saved.generation + 1 << _ROUTE_BITS) + 1).__next__
        self._first_seq = saved.generation * _MAX_SEQ
        self._scheduler.pool.last_number = saved.last_worker
        self._processes = {each.worker: each.process_number for each in saved.workers if each.worker in alive}
        kept: dict[str, Session] = {}
        lost = []
        for record in saved.sessions:
            if record.open and record.details is not None and self._can_go_on(record.details):
                kept[record.id] = self._restore_session(record, record.details, now)
            elif record.open:
                lost.append(record)
        names = self._restore_closed(saved, lost)
        for each in saved.evals:
            self._restore_eval(each, kept.get(each.session), now)
        for task in sorted(self._tasks, key=lambda task: task.submitted_at):
            if task.key is not None:
                state.idempotency.restore(task.key, task)
        serving = {worker.process for worker in self._scheduler.pool.workers.values()}
        state.effects += [Kill(process) for process in sorted({*self._processes.values()} - serving)]
        state.earlier_instances = saved.keys.instances
        dropped = state.idempotency.dropped
        for identity, moment in saved.keys.dropped.items():
            dropped[identity] = max(state.clock.from_unix(moment), dropped.get(identity, -math.inf))
        for session in kept.values():
            self._go_on(session, now)
        return names

    def _can_go_on(self, details: SessionDetails) -> bool:
        config = self._state.config
        has_place = details.spec.runtime in config.runtimes and config.sandbox.problem is None
        has_begun = details.was_ready or details.branch_of is None  # a new branch would begin with nothing
        return has_place and has_begun and (details.worker is None or details.worker in self._processes)

    def _restore_closed(self, saved: SavedState, lost: list[SessionRecord]) -> list[str]:
        """Take over the records of sessions that are open no more, and return the names of the lost ones."""
        state = self._state
        ephemeral = {each.id for each in lost if each.details is not None and each.details.ephemeral}
        lost = [each for each in lost if each.id not in ephemeral]
        ended = state.records.restore_closed(saved, lost)
        for record in (*ended, *(each for each in saved.sessions if not each.open)):
            if record.cause is not None:
                state.sessions.record_end(NameKey(record.owner, record.id), record.cause)
                state.sessions.record_end(NameKey(record.owner, record.name or record.id, record.scope), record.cause)
        return [self._display_name(record) for record in lost]

    def _display_name(self, record: SessionRecord) -> str:
        owner = "" if record.owner == self._state.config.broker_user else f"{record.owner}/"
        scope = f" ({record.scope})" if record.scope else ""
        return f"{owner}{record.name or record.id}{scope}"

    # --- sessions ---

    def _restore_session(self, record: SessionRecord, details: SessionDetails, now: float) -> Session:
        state, from_unix = self._state, self._state.clock.from_unix
        spec = WorkerSpec(*msgspec.structs.astuple(details.spec))
        session = Session(record.id, record.name, spec, details.agent, self._limits(details), now)
        session.owner, session.scope, session.epoch = record.owner, record.scope, record.epoch
        session.owner_principal, session.worker_identity = details.principal, details.worker_identity
        session.created_at = from_unix(details.created_at)
        session.mode_since = from_unix(details.mode_since)
        session.shares = dict(details.shares)
        session.event_buffer.seq = self._first_seq
        for field in _COPIED:
            setattr(session, field, getattr(details, field))
        state.sessions.add(session)
        state.quotas.charge(SESSIONS, session.holder)
        state.records.restore_open(session)
        if details.worker is not None:
            process = self._processes[details.worker]
            self._scheduler.pool.restore(details.worker, process, session, now)
            self._scheduler.adoption.begin(session, now)
        elif session.hibernated is not None:
            session.transition("hibernate")
        return session

    def _limits(self, details: SessionDetails) -> Limits:
        limits = self._state.limits
        if details.max_output_bytes >= limits.max_output_bytes:
            return limits
        return msgspec.structs.replace(limits, max_output_bytes=details.max_output_bytes)

    def _go_on(self, session: Session, now: float) -> None:
        """Serve the queue of a session, or start the worker that it was waiting for."""
        session.trim_evals(self._state.limits.max_history)
        if session.state is not ADOPTING and not session.was_ready:
            self._scheduler.pool.acquire(session, now)
        self._scheduler.lifecycle.advance(session, now)

    # --- evals ---

    def _restore_eval(self, record: SavedEval, session: Session | None, now: float) -> None:
        if session is None:
            if record.progress.has_key:  # a client that asks again must learn that it ran
                self._build_task(record, self._closed_session(record.session, now), None)
            return
        request = self._parse_request(record)
        task = self._build_task(record, session, request)
        session.evals.append(task)
        if request is not None and request.in_history:
            session.add_history(task, request.summary())
        elif record.history is not None:
            session.add_history(task, record.history)
        if request is None or task.state is EvalTask.DONE:
            return
        self._state.routes[task.route] = task
        task.request, task.body = request, record.body
        if task.state is EvalTask.RUNNING:
            session.running = task
            self._state.semaphore.take(task.slot_request)
        else:
            self._scheduler.queue.add(task)
            self._scheduler.limit_wait(task, request, now)

    def _parse_request(self, record: SavedEval) -> wire.Queueable | None:
        if record.body is None:
            return None
        try:
            request = to_request(parse(record.body))
        except RequestError as error:  # a broker of another version has accepted it
            self._state.log(f"eval {record.eval_id} of session {record.session} is lost: {error.message}")
            return None
        assert isinstance(request, wire.Eval | wire.QueuedRequest), "only these are saved"
        return request

    def _build_task(self, record: SavedEval, session: Session, request: wire.Queueable | None) -> EvalTask:
        progress, from_unix = record.progress, self._state.clock.from_unix
        asked = request or wire.Eval(id=record.request_id, op=record.op, agent=record.agent, code=record.code)
        slot_request = SlotRequest(Holder(record.identity, record.holder_agent), record.long)
        count = session.eval_count
        task = EvalTask(session, record.route, None, slot_request, asked, TimeLimit(*record.limit), 0.0)
        session.eval_count = max(count, record.eval_id)
        task.eval_id, task.epoch, task.op = record.eval_id, progress.epoch, record.op
        task.submitted_at, task.principal = from_unix(record.submitted_at), record.principal
        task.started_at = None if progress.started_at is None else from_unix(progress.started_at)
        task.duration_ms, task.undone, task.is_saved = progress.duration_ms, progress.undone, True
        task.request = None
        if progress.has_key and record.key is not None:
            task.key = IdempotencyKey(Holder(record.identity, record.key_agent), record.key, record.digest)
        if progress.status:
            task.state, task.status = EvalTask.DONE, progress.status
        elif request is None or (task.started_at is not None and session.state is not ADOPTING):
            task.state, task.status = EvalTask.DONE, _LOST
        elif task.started_at is not None:
            task.state = EvalTask.RUNNING
        self._tasks.append(task)
        return task

    def _closed_session(self, id: str, now: float) -> Session:
        """Return what stands for a session that is open no more."""
        if id not in self._closed:
            spec = WorkerSpec(self._state.config.runtimes[0])
            session = self._closed[id] = Session(id, None, spec, None, self._state.limits, now)
            session.transition("close")
        return self._closed[id]


def export_state(state: BrokerState) -> tuple[int, list[Record]]:
    """Return everything that a broker after this one needs: the floor of epochs, and records."""
    floor, sessions = state.records.export()
    records: list[Record] = [*sessions]
    for session in state.records.open_sessions():
        records += state.changes.evals_of(session)
    records += [
        state.changes.eval_record(task)
        for task in state.idempotency.tasks()
        if task.session.state is CLOSED and task.is_saved
    ]
    return floor, records


def export_keys(state: BrokerState) -> KeyHistory:
    """Return which idempotency keys are among the records."""
    instances = [*state.earlier_instances, state.config.boot_id][-_MAX_INSTANCES:]
    dropped = {who: round(state.clock.to_unix(moment), 3) for who, moment in state.idempotency.dropped.items()}
    return KeyHistory(instances, dropped)

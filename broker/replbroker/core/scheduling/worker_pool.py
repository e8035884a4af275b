"""Workers: kept warm, taken by sessions, counted, and given up when they die or never start."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from replbroker.core.effects import DeleteSnapshot, Kill, Spawn, ToWorker, WorkerSpec
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire.deadlines import Deadline
from replwire.link import AssignBody, FrameKind, HeartbeatBody, encode, pack

_MAX_STARTING = 8  # workers started at once: a burst of sessions must not fork-bomb the host
_MAX_OPENING = 6  # of these, those that open what a client has named, which may hold them up for `worker-start-ms`
_MAX_OPENING_OF_ONE = 3  # identity
_REFILL_PAUSE_S = 0.02  # starting a process competes with the answer that a fresh session is about to give
_MAX_START_FAILURES = 3  # starts that fail in a row before waiting sessions are told
_MAX_START_FAILURES_NAMED = 1  # the same for an environment that somebody named: it is not there, and will not be

STARTING: Final = "starting"
WARM: Final = "warm"
ASSIGNED: Final = "claimed"

StartFailed = Callable[[Session, str, float], None]


class Worker:
    """One worker process as the core sees it."""

    __slots__ = ("born", "deadline", "heard", "number", "session", "spec", "state", "usage")

    def __init__(self, number: int, spec: WorkerSpec, now: float) -> None:
        self.number = number
        self.spec = spec
        self.state: str = STARTING
        self.session: Session | None = None
        self.born = self.heard = now
        self.usage = HeartbeatBody()
        self.deadline: Deadline | None = None


class _SpecPool:
    """Workers of one spec that are ready, and sessions that wait for one."""

    __slots__ = ("cause", "fails", "waiting", "warm")

    def __init__(self) -> None:
        self.warm: deque[Worker] = deque()
        self.waiting: deque[Session] = deque()
        self.fails = 0  # starts that failed since the last that did not
        self.cause = ""


class WorkerPool:
    """All workers. A worker serves one session and is never used again.

    `failed(session, cause, now)` is called for a waiting session that gets no worker.
    """

    def __init__(self, state: BrokerState, failed: StartFailed) -> None:
        self._state = state
        self._on_start_failed = failed
        self._count = 0
        self._refill_deadline: Deadline | None = None
        self.workers: dict[int, Worker] = {}
        self._default = WorkerSpec(state.config.runtimes[0])
        self._pools: dict[WorkerSpec, _SpecPool] = {self._default: _SpecPool()}

    def _pool(self, spec: WorkerSpec) -> _SpecPool:
        line = self._pools.get(spec)
        if line is None:
            line = self._pools[spec] = _SpecPool()
        return line

    def acquire(self, session: Session, now: float) -> None:
        """Get the session a worker: a warm one at once, else the next that is ready."""
        session.transition("take")
        session.spec = session.spec.for_principal(session.owner_principal)
        when = now + self._state.limits.worker_start_ms / 1000
        session.start_deadline = self._state.deadlines.call_at(when, lambda at: self._acquire_timed_out(session, at))
        line = self._pool(session.spec)
        if line.warm:
            self._assign(line.warm.popleft(), session)
            self._refill_soon(now)
            return
        line.waiting.append(session)
        line.fails = min(line.fails, self._max_start_failures(session.spec) - 1)  # somebody asks: try again
        self.refill(now)

    @staticmethod
    def _max_start_failures(spec: WorkerSpec) -> int:
        return _MAX_START_FAILURES if spec.environment is None else _MAX_START_FAILURES_NAMED

    def _refill_soon(self, now: float) -> None:
        if self._refill_deadline is None:
            self._refill_deadline = self._state.deadlines.call_at(now + _REFILL_PAUSE_S, self.refill)

    def refill(self, now: float) -> None:
        """Start what is missing: one for each waiting session, and the warm ones."""
        self._state.deadlines.cancel(self._refill_deadline)
        self._refill_deadline = None
        if self._state.draining:
            return
        starting, claimed = self._by_spec()
        total = sum(starting.values())
        opening: Counter[str] = Counter()
        for spec, count in starting.items():
            if spec.principal is not None:
                opening[spec.principal.identity] += count
        for spec, line in list(self._pools.items()):
            own = starting.get(spec, 0)
            spare = self._target_idle(spec, line, claimed.get(spec, 0))
            missing = len(line.waiting) + max(0, spare - len(line.warm)) - own
            room = _MAX_STARTING - total
            if spec.principal is not None:
                mine = opening[spec.principal.identity]
                room = min(room, _MAX_OPENING - opening.total(), _MAX_OPENING_OF_ONE - mine)
            for _ in range(min(missing, room)):
                self._spawn(spec, now)
                total += 1
                if spec.principal is not None:
                    opening[spec.principal.identity] += 1
            while len(line.warm) > max(spare, 0) and spec != self._default:
                self._kill(line.warm[0])  # nobody has a session of this kind any more
            if spec != self._default and not (own or missing > 0 or spare or line.waiting):
                del self._pools[spec]

    def _by_spec(self) -> tuple[dict[WorkerSpec, int], dict[WorkerSpec, int]]:
        starting: dict[WorkerSpec, int] = {}
        claimed: dict[WorkerSpec, int] = {}
        for worker in self.workers.values():
            if worker.state is not WARM:
                count = starting if worker.state is STARTING else claimed
                count[worker.spec] = count.get(worker.spec, 0) + 1
        return starting, claimed

    def _target_idle(self, spec: WorkerSpec, line: _SpecPool, claimed: int) -> int:
        """How many to keep warm. Of what is not the default: one, while a session has such a worker."""
        if line.fails or self._state.memory.is_short:
            return 0
        warm = self._state.config.warm_workers
        return warm if spec == self._default else min(1, warm, claimed)

    def _spawn(self, spec: WorkerSpec, now: float) -> None:
        self._count += 1
        worker = self.workers[self._count] = Worker(self._count, spec, now)
        when = now + self._state.limits.worker_start_ms / 1000
        worker.deadline = self._state.deadlines.call_at(when, lambda at: self._start_timed_out(worker, at))
        self._state.effects.append(Spawn(worker.number, spec))
        self._state.emitter.emit_worker_spawned(worker.number, spec)

    def on_ready(self, worker: Worker, now: float) -> None:
        """Its interpreter is up: give it to who waits, or keep it warm."""
        if worker.state is not STARTING:
            return
        line = self._pool(worker.spec)
        line.fails = 0
        self._state.deadlines.cancel(worker.deadline)
        self._state.emitter.emit_worker_ready(worker.number, now - worker.born)
        if line.waiting:
            self._assign(worker, line.waiting.popleft())
        else:
            worker.state = WARM
            line.warm.append(worker)
        self.refill(now)

    def _assign(self, worker: Worker, session: Session) -> None:
        worker.state, worker.session, session.worker = ASSIGNED, session, worker.number
        session.opened_for = session.owner_principal.identity
        claim = AssignBody(
            session=session.id,
            name=session.name,
            asker=session.owner_principal,
            cwd=session.cwd,
            cwd_needed=session.cwd_needed,
            env=session.env,
            limits=session.limits,
            lost=session.lost_cause,
            ephemeral=session.ephemeral,
            restore=session.snapshot_path,
        )
        self._state.effects.append(ToWorker(worker.number, pack(FrameKind.ASSIGN, encode(claim), epoch=session.epoch)))

    def transfer(self, giver: Session, taker: Session) -> None:
        """The worker of one session is another's from now on. The taker has none."""
        assert giver.worker is not None
        worker = self.workers[giver.worker]
        worker.session, taker.worker, giver.worker = taker, worker.number, None
        taker.opened_for = giver.opened_for

    def discard_worker(self, session: Session) -> None:
        """Kill the session's worker, or stop waiting for one."""
        self._state.deadlines.cancel(session.start_deadline)
        session.start_deadline = None
        self.delete_snapshot(session)
        if session.worker is not None:
            self._kill(self.workers[session.worker])
            session.worker = None
        elif session in (waiting := self._pool(session.spec).waiting):
            waiting.remove(session)

    def discard_environment(self, environment: str, now: float) -> None:
        """Kill the workers in this environment that no session has."""
        for worker in list(self.workers.values()):
            if worker.session is None and worker.spec.environment == environment:
                self._kill(worker)
        self.refill(now)

    def delete_snapshot(self, session: Session) -> None:
        """The file that the session began with, or was to begin with, is of no more use."""
        if session.snapshot_path is not None:
            self._state.effects.append(DeleteSnapshot(session.snapshot_path))
            session.snapshot_path = None

    def _kill(self, worker: Worker, cause: str = "not needed any more") -> None:
        self._forget(worker)
        self._state.effects.append(Kill(worker.number))
        self._state.emitter.emit_worker_exited(worker.number, cause, worker.session)

    def _forget(self, worker: Worker) -> None:
        del self.workers[worker.number]
        self._state.deadlines.cancel(worker.deadline)
        if worker.state is WARM:
            self._pool(worker.spec).warm.remove(worker)

    def on_unassigned_exit(self, worker: Worker, cause: str, now: float, *, dead: bool) -> None:
        """A worker that no session has is of no use: forget it, and kill it unless it is dead already."""
        was_starting = worker.state is STARTING
        self._forget(worker)
        if not dead:
            self._state.effects.append(Kill(worker.number))
        self._state.emitter.emit_worker_exited(worker.number, cause, None)
        self._state.log(f"worker {worker.number} ({worker.spec}, {worker.state}): {cause}")
        if was_starting:
            line = self._pool(worker.spec)
            line.fails += 1
            line.cause = cause
            if line.fails >= self._max_start_failures(worker.spec):
                self._fail_waiting(line, now)
        self.refill(now)

    def _start_timed_out(self, worker: Worker, now: float) -> None:
        cause = f"not ready within {self._state.limits.worker_start_ms} ms"
        self.on_unassigned_exit(worker, cause, now, dead=False)

    def _fail_waiting(self, line: _SpecPool, now: float) -> None:
        waiting = list(line.waiting)
        line.waiting.clear()  # who asks from here on, an eval that comes up next perhaps, gets another try
        for session in waiting:
            self._on_start_failed(session, f"no worker could be started: {line.cause}", now)

    def _acquire_timed_out(self, session: Session, now: float) -> None:
        line = self._pool(session.spec)
        cause = f"no worker was ready within {self._state.limits.worker_start_ms} ms"
        self._on_start_failed(session, cause + (f": {line.cause}" if line.cause and line.fails else ""), now)

    def missed_heartbeat(self, workers_read_at: float) -> list[Worker]:
        """Workers that were not heard for `worker-silence-ms` at the moment when the broker had last heard all that was
        said: what it has not listened to is not their silence."""
        limit = self._state.limits.worker_silence_ms / 1000
        return [w for w in self.workers.values() if w.state is not STARTING and workers_read_at - w.heard > limit]

    def reset_heartbeats(self, now: float) -> None:
        """The broker itself was stopped for a while: nobody could be heard, so nobody is blamed."""
        for worker in self.workers.values():
            worker.heard = now

    def count_by_state(self) -> dict[str, int]:
        """Workers by state."""
        states = [worker.state for worker in self.workers.values()]
        return {state: states.count(state) for state in (STARTING, WARM, ASSIGNED)}

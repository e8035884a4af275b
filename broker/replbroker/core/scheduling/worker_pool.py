"""The worker pool: workers kept warm, assigned to sessions, counted, and discarded when they exit or fail to start."""

from __future__ import annotations

from collections import Counter

from replbroker.core.effects import DeleteSnapshot, Kill, LeaveWorker, Spawn, StartBranch, ToWorker, WorkerSpec
from replbroker.core.scheduling.worker import ASSIGNED, STARTING, WARM, SpecPool, StartFailureHandler, Worker
from replbroker.core.sessions.session import Session
from replbroker.core.state import BrokerState
from replwire.deadlines import Deadline
from replwire.link import AssignBody, FrameKind, encode, pack

_MAX_STARTING = 8  # workers starting at once: a burst of sessions must not fork-bomb the host
_MAX_OPENING = 6  # of these, those that open what a client has named, which may delay them for `worker-start-ms`
_MAX_OPENING_OF_ONE = 3  # identity
_REFILL_PAUSE_S = 0.02  # starting a process competes with the answer that a fresh session is about to give
_MAX_START_FAILURES = 3  # in a row, before waiting sessions are failed
_MAX_START_FAILURES_NAMED = 1  # the same for an environment named by a client: a retry would fail too


class WorkerPool:
    """All workers. A worker serves one session and is never used again."""

    def __init__(self, state: BrokerState, failures: StartFailureHandler) -> None:
        self._state = state
        self._failures = failures
        self.last_number = 0
        self._refill_deadline: Deadline | None = None
        self.workers: dict[int, Worker] = {}
        self._default = WorkerSpec(state.config.runtimes[0])
        self._pools: dict[WorkerSpec, SpecPool] = {self._default: SpecPool()}

    def _pool(self, spec: WorkerSpec) -> SpecPool:
        pool = self._pools.get(spec)
        if pool is None:
            pool = self._pools[spec] = SpecPool()
        return pool

    # --- sessions ---

    def acquire(self, session: Session, now: float) -> None:
        """Get the session a worker: an idle one at once, else the next that is ready."""
        session.transition("take")
        session.spec = session.spec.for_principal(session.owner_principal)
        when = now + self._state.limits.worker_start_ms / 1000
        session.start_deadline = self._state.deadlines.call_at(when, lambda at: self._acquire_timed_out(session, at))
        pool = self._pool(session.spec)
        if pool.warm:
            self._assign(pool.warm.popleft(), session)
            self._refill_soon(now)
            return
        pool.waiting.append(session)
        pool.failures = min(pool.failures, self._max_start_failures(session.spec) - 1)  # allow one more attempt
        self.refill(now)

    def _assign(self, worker: Worker, session: Session) -> None:
        worker.state, worker.session, session.worker = ASSIGNED, session, worker.number
        if session.hibernated is None:
            session.worker_epoch = session.epoch
        session.results_epoch = session.epoch
        session.worker_identity = session.owner_principal.identity
        body = AssignBody(
            session=session.id,
            name=session.name,
            owner=session.owner_principal,
            cwd=session.cwd,
            cwd_needed=session.cwd_needed,
            env=session.env,
            limits=session.limits,
            lost_cause=session.lost_cause,
            ephemeral=session.ephemeral,
            restore=session.snapshot,
            hibernated=session.hibernated,
            network=self._state.config.network_rules(session),
            checkpoints=self._state.config.checkpoints,
            checkpoint_files=session.checkpoint_files,
            packages_of=session.packages_of,
        )
        frame = pack(FrameKind.ASSIGN, encode(body), epoch=session.epoch)
        self._state.effects.append(ToWorker(worker.number, frame))

    def branch(self, source: Session, target: Session, checkpoint: int, now: float) -> None:
        """Have the process of a session serve another one, which begins with a checkpoint of it."""
        assert source.worker is not None
        target.transition("take")
        when = now + self._state.limits.worker_start_ms / 1000
        target.start_deadline = self._state.deadlines.call_at(when, lambda at: self._acquire_timed_out(target, at))
        self.last_number += 1
        process = self.workers[source.worker].process
        worker = Worker(self.last_number, target.spec, now, process)
        worker.state, worker.session, target.worker = ASSIGNED, target, worker.number
        worker.awaits_ready = True
        self.workers[worker.number] = worker
        self._state.effects.append(StartBranch(worker.number, source.worker, process, checkpoint))

    def family(self, session: Session) -> list[Session]:
        """Return the sessions that share a worker process and its sandbox with this one, itself included."""
        if session.worker is None:
            return [session]
        sharing = self.served_by(self.workers[session.worker].process)
        return [worker.session for worker in sharing if worker.session is not None]

    def served_by(self, process: int) -> list[Worker]:
        """Return the workers that a process serves."""
        return [worker for worker in self.workers.values() if worker.process == process]

    def _acquire_timed_out(self, session: Session, now: float) -> None:
        pool = self._pool(session.spec)
        cause = f"no worker was ready within {self._state.limits.worker_start_ms} ms"
        cause += f": {pool.cause}" if pool.cause and pool.failures else ""
        self._failures.on_start_failed(session, cause, now)

    def restore(self, number: int, process: int, session: Session, now: float) -> None:
        """Take over a session's worker, which a process serves, from the broker before this one."""
        worker = self.workers[number] = Worker(number, session.spec, now, process)
        worker.state, worker.session, session.worker = ASSIGNED, session, number

    def transfer(self, giver: Session, taker: Session) -> None:
        """Give the worker of one session to another, which has none."""
        assert giver.worker is not None
        worker = self.workers[giver.worker]
        worker.session, taker.worker, giver.worker = taker, worker.number, None
        taker.worker_identity, taker.worker_epoch = giver.worker_identity, taker.epoch

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

    def delete_snapshot(self, session: Session) -> None:
        """Delete the file that the session began with, or was to begin with."""
        if session.snapshot is not None:
            self._state.effects.append(DeleteSnapshot(session.snapshot.path))
            session.snapshot = None

    # --- refill ---

    @staticmethod
    def _max_start_failures(spec: WorkerSpec) -> int:
        return _MAX_START_FAILURES if spec.environment is None else _MAX_START_FAILURES_NAMED

    def _refill_soon(self, now: float) -> None:
        if self._refill_deadline is None:
            self._refill_deadline = self._state.deadlines.call_at(now + _REFILL_PAUSE_S, self.refill)

    def refill(self, now: float) -> None:
        """Start the missing workers: one for each waiting session, and the warm ones."""
        self._state.deadlines.cancel(self._refill_deadline)
        self._refill_deadline = None
        if self._state.draining:
            return
        starting, assigned = self._count_by_spec()
        total = sum(starting.values())
        opening: Counter[str] = Counter()
        for spec, count in starting.items():
            if spec.principal is not None:
                opening[spec.principal.identity] += count
        for spec, pool in list(self._pools.items()):
            own = starting.get(spec, 0)
            idle = self._target_idle(spec, pool, assigned.get(spec, 0))
            missing = len(pool.waiting) + max(0, idle - len(pool.warm)) - own
            room = _MAX_STARTING - total
            if spec.principal is not None:
                mine = opening[spec.principal.identity]
                room = min(room, _MAX_OPENING - opening.total(), _MAX_OPENING_OF_ONE - mine)
            for _ in range(min(missing, room)):
                self._spawn(spec, now)
                total += 1
                if spec.principal is not None:
                    opening[spec.principal.identity] += 1
            while len(pool.warm) > max(idle, 0) and spec != self._default:
                self._kill(pool.warm[0])  # no session of this kind is left
            if spec != self._default and not (own or missing > 0 or idle or pool.waiting):
                del self._pools[spec]

    def _count_by_spec(self) -> tuple[dict[WorkerSpec, int], dict[WorkerSpec, int]]:
        """Count the starting and the assigned workers of each spec."""
        starting: dict[WorkerSpec, int] = {}
        assigned: dict[WorkerSpec, int] = {}
        for worker in self.workers.values():
            if worker.state is not WARM:
                count = starting if worker.state is STARTING else assigned
                count[worker.spec] = count.get(worker.spec, 0) + 1
        return starting, assigned

    def _target_idle(self, spec: WorkerSpec, pool: SpecPool, assigned: int) -> int:
        """Return how many workers to keep warm. Beside the default spec: one, while a session has such a worker."""
        if pool.failures or self._state.memory.is_short:
            return 0
        warm = self._state.config.warm_workers
        return warm if spec == self._default else min(1, warm, assigned)

    def _spawn(self, spec: WorkerSpec, now: float) -> None:
        self.last_number += 1
        worker = self.workers[self.last_number] = Worker(self.last_number, spec, now)
        when = now + self._state.limits.worker_start_ms / 1000
        worker.start_deadline = self._state.deadlines.call_at(when, lambda at: self._start_timed_out(worker, at))
        self._state.effects.append(Spawn(worker.number, spec))
        self._state.emitter.emit_worker_spawned(worker.number, spec)

    # --- workers ---

    def on_ready(self, worker: Worker, now: float) -> None:
        """Assign a worker whose interpreter is up to a waiting session, or keep it warm."""
        if worker.awaits_ready and worker.session is not None:
            worker.awaits_ready = False
            self._assign(worker, worker.session)
        if worker.state is not STARTING:
            return
        pool = self._pool(worker.spec)
        pool.failures = 0
        self._state.deadlines.cancel(worker.start_deadline)
        self._state.emitter.emit_worker_ready(worker.number, now - worker.spawned_at)
        if pool.waiting:
            self._assign(worker, pool.waiting.popleft())
        else:
            worker.state = WARM
            pool.warm.append(worker)
        self.refill(now)

    def discard_environment(self, environment: str, now: float) -> None:
        """Kill the workers in this environment that no session has."""
        for worker in list(self.workers.values()):
            if worker.session is None and worker.spec.environment == environment:
                self._kill(worker)
        self.refill(now)

    def on_unassigned_exit(self, worker: Worker, cause: str, now: float, *, dead: bool) -> None:
        """Forget a worker that no session has. `dead` is False when its process still has to be killed."""
        was_starting = worker.state is STARTING
        self._forget(worker)
        if not dead:
            self._state.effects.append(Kill(worker.number))
        self._state.emitter.emit_worker_exited(worker.number, cause, None)
        self._state.log(f"worker {worker.number} ({worker.spec}, {worker.state}): {cause}")
        if was_starting:
            pool = self._pool(worker.spec)
            pool.failures += 1
            pool.cause = cause
            if pool.failures >= self._max_start_failures(worker.spec):
                self._fail_waiting(pool, now)
        self.refill(now)

    def _start_timed_out(self, worker: Worker, now: float) -> None:
        cause = f"not ready within {self._state.limits.worker_start_ms} ms"
        self.on_unassigned_exit(worker, cause, now, dead=False)

    def _fail_waiting(self, pool: SpecPool, now: float) -> None:
        waiting = list(pool.waiting)
        pool.waiting.clear()  # a session that comes from here on, by its next eval perhaps, gets another attempt
        for session in waiting:
            self._failures.on_start_failed(session, f"no worker could be started: {pool.cause}", now)

    def _kill(self, worker: Worker, cause: str = "not needed any more") -> None:
        self._forget(worker)
        self._end_process(worker)
        self._state.emitter.emit_worker_exited(worker.number, cause, worker.session)

    def _end_process(self, worker: Worker) -> None:
        """Kill the process of a worker, or have it end one of several sessions."""
        if self.served_by(worker.process) or worker.number != worker.process:
            self._state.effects.append(LeaveWorker(worker.number))
        if not self.served_by(worker.process):
            self._state.effects.append(Kill(worker.process))

    def _forget(self, worker: Worker) -> None:
        del self.workers[worker.number]
        self._state.deadlines.cancel(worker.start_deadline)
        if worker.state is WARM:
            self._pool(worker.spec).warm.remove(worker)

    # --- heartbeats ---

    def missed_heartbeat(self, workers_read_at: float) -> list[Worker]:
        """Return the workers that have sent nothing for `worker-silence-ms`.

        Args:
            workers_read_at: The moment when the broker had last read all that workers had sent. Only silence until
                then counts against a worker.
        """
        limit = self._state.limits.worker_silence_ms / 1000
        return [w for w in self.workers.values() if w.state is not STARTING and workers_read_at - w.last_seen > limit]

    def reset_heartbeats(self, now: float) -> None:
        """Forgive silence after the broker itself was suspended."""
        for worker in self.workers.values():
            worker.last_seen = now

    def count_by_state(self) -> dict[str, int]:
        """Count the workers by state."""
        states = [worker.state for worker in self.workers.values()]
        return {state: states.count(state) for state in (STARTING, WARM, ASSIGNED)}

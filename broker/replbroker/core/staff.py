"""Workers: kept warm, taken by sessions, counted, and given up when they die or never start."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from replbroker.core.effects import Kill, Spawn, ToWorker
from replbroker.core.session import Session
from replbroker.core.state import State
from replwire.deadlines import Deadline
from replwire.link import Claim, Kind, encode, pack

_MAX_STARTING = 8  # workers started at once: a burst of sessions must not fork-bomb the host
_REFILL_PAUSE_S = 0.02  # starting a process competes with the answer that a fresh session is about to give
_GIVE_UP = 3  # starts that fail in a row before waiting sessions are told

STARTING: Final = "starting"
WARM: Final = "warm"
CLAIMED: Final = "claimed"

Failed = Callable[[Session, str, float], None]


class Worker:
    """One worker process as the core sees it."""

    __slots__ = ("deadline", "heard", "number", "runtime", "session", "state")

    def __init__(self, number: int, runtime: str, now: float) -> None:
        self.number = number
        self.runtime = runtime
        self.state: str = STARTING
        self.session: Session | None = None
        self.heard = now
        self.deadline: Deadline | None = None


class Staff:
    """All workers. A worker serves one session and is never used again.

    `failed(session, cause, now)` is called for a waiting session that gets no worker.
    """

    def __init__(self, state: State, failed: Failed) -> None:
        self._state = state
        self._failed = failed
        self._count = 0
        self._fails = 0
        self._last_cause = ""
        self._pause: Deadline | None = None
        self.workers: dict[int, Worker] = {}
        self._warm: dict[str, deque[Worker]] = {}
        self._waiting: dict[str, deque[Session]] = {}

    def take(self, session: Session, now: float) -> None:
        """Get the session a worker: a warm one at once, else the next that is ready."""
        session.move("take")
        when = now + self._state.limits.worker_start_ms / 1000
        session.start_deadline = self._state.deadlines.at(when, lambda at: self._late(session, at))
        warm = self._warm.get(session.runtime)
        if warm:
            self._give(warm.popleft(), session)
            self._refill_soon(now)
            return
        self._waiting.setdefault(session.runtime, deque()).append(session)
        self._fails = min(self._fails, _GIVE_UP - 1)  # somebody asks: try again
        self.refill(now)

    def _refill_soon(self, now: float) -> None:
        if self._pause is None:
            self._pause = self._state.deadlines.at(now + _REFILL_PAUSE_S, self.refill)

    def refill(self, now: float) -> None:
        """Start what is missing: one for each waiting session, and the warm ones."""
        self._state.deadlines.cancel(self._pause)
        self._pause = None
        if self._state.draining:
            return
        for runtime in self._state.setup.runtimes:
            waiting = len(self._waiting.get(runtime, ()))
            warm = len(self._warm.get(runtime, ()))
            starting = sum(w.state is STARTING and w.runtime == runtime for w in self.workers.values())
            spare = self._state.setup.warm_workers if self._fails == 0 else 0
            missing = waiting + max(0, spare - warm) - starting
            for _ in range(min(missing, _MAX_STARTING - starting)):
                self._spawn(runtime, now)

    def _spawn(self, runtime: str, now: float) -> None:
        self._count += 1
        worker = self.workers[self._count] = Worker(self._count, runtime, now)
        when = now + self._state.limits.worker_start_ms / 1000
        worker.deadline = self._state.deadlines.at(when, lambda at: self._never_ready(worker, at))
        self._state.out.append(Spawn(worker.number, runtime))

    def ready(self, worker: Worker, now: float) -> None:
        """Its interpreter is up: give it to who waits, or keep it warm."""
        if worker.state is not STARTING:
            return
        self._fails = 0
        self._state.deadlines.cancel(worker.deadline)
        waiting = self._waiting.get(worker.runtime)
        if waiting:
            self._give(worker, waiting.popleft())
        else:
            worker.state = WARM
            self._warm.setdefault(worker.runtime, deque()).append(worker)
        self.refill(now)

    def _give(self, worker: Worker, session: Session) -> None:
        worker.state, worker.session, session.worker = CLAIMED, session, worker.number
        claim = Claim(
            session=session.id, name=session.name, cwd=session.cwd, env=session.env, limits=self._state.limits,
            lost=session.lost, ephemeral=session.ephemeral,
        )  # fmt: skip
        self._state.out.append(ToWorker(worker.number, pack(Kind.CLAIM, encode(claim), epoch=session.epoch)))

    def dismiss(self, session: Session) -> None:
        """Kill the session's worker, or stop waiting for one."""
        self._state.deadlines.cancel(session.start_deadline)
        session.start_deadline = None
        if session.worker is not None:
            self._kill(self.workers[session.worker])
            session.worker = None
        elif session in (waiting := self._waiting.get(session.runtime, deque())):
            waiting.remove(session)

    def _kill(self, worker: Worker) -> None:
        self._forget(worker)
        self._state.out.append(Kill(worker.number))

    def _forget(self, worker: Worker) -> None:
        del self.workers[worker.number]
        self._state.deadlines.cancel(worker.deadline)
        if worker.state is WARM:
            self._warm[worker.runtime].remove(worker)

    def unclaimed_gone(self, worker: Worker, cause: str, now: float, *, dead: bool) -> None:
        """A worker that no session has is of no use: forget it, and kill it unless it is dead already."""
        was_starting = worker.state is STARTING
        self._forget(worker)
        if not dead:
            self._state.out.append(Kill(worker.number))
        self._state.note(f"worker {worker.number} ({worker.state}): {cause}")
        if was_starting:
            self._fails += 1
            self._last_cause = cause
            if self._fails >= _GIVE_UP:
                self._tell_waiting(now)
        self.refill(now)

    def _never_ready(self, worker: Worker, now: float) -> None:
        cause = f"not ready within {self._state.limits.worker_start_ms} ms"
        self.unclaimed_gone(worker, cause, now, dead=False)

    def _tell_waiting(self, now: float) -> None:
        waiting = [session for line in self._waiting.values() for session in line]
        self._waiting.clear()  # who asks from here on, an eval that comes up next perhaps, gets another try
        for session in waiting:
            self._failed(session, f"no worker could be started: {self._last_cause}", now)

    def _late(self, session: Session, now: float) -> None:
        cause = f"no worker was ready within {self._state.limits.worker_start_ms} ms"
        self._failed(session, cause + (f": {self._last_cause}" if self._last_cause and self._fails else ""), now)

    def silent(self, now: float) -> list[Worker]:
        """Workers that were not heard for `worker-silence-ms`."""
        limit = self._state.limits.worker_silence_ms / 1000
        return [w for w in self.workers.values() if w.state is not STARTING and now - w.heard > limit]

    def forgive_silence(self, now: float) -> None:
        """The broker itself was stopped for a while: nobody could be heard, so nobody is blamed."""
        for worker in self.workers.values():
            worker.heard = now

    def counts(self) -> dict[str, int]:
        """Workers by state."""
        states = [worker.state for worker in self.workers.values()]
        return {state: states.count(state) for state in (STARTING, WARM, CLAIMED)}

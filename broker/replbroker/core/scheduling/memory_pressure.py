"""Watch over memory: reports of workers and of the machine in, sessions ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from replbroker.core.effects import MeasureMemory
from replbroker.core.limits.memory_totals import AvailableMemory, WorkerMemory
from replbroker.core.scheduling.worker_pool import WorkerPool
from replbroker.core.state import BrokerState
from replwire.deadlines import Deadline
from replwire.link import HeartbeatBody

_MEASURE_S, _MEASURE_NEAR_S = 2.0, 0.25  # between two looks at the machine, by how much it has left
_MEASURE_IDLE_S = 15.0  # without a session
_NEAR_FACTOR = 4  # times what has to be left
_BURST_S = 0.05  # reports of workers are summed up once in so long
_RELIEF_S = 0.5  # for the memory of a session that was ended to be free


class MemoryPressure:
    """Over one state's sessions. `lose` ends one with its worker."""

    def __init__(self, state: BrokerState, staff: WorkerPool, lose: Callable[..., None]) -> None:
        self._state = state
        self._staff = staff
        self._lose = lose
        self._memory = state.memory
        self._update_deadline: Deadline | None = None
        self._measure_deadline: Deadline | None = None
        self._relief_until = 0.0  # until then what the machine says is from before

    def start(self) -> None:
        """Ask for a look at the machine."""
        self._state.effects.append(MeasureMemory())

    def on_usage(self, before: HeartbeatBody, usage: HeartbeatBody, now: float) -> None:
        """Take in a report of a session's worker."""
        if usage.memory_bytes != before.memory_bytes and self._update_deadline is None:
            self._update_deadline = self._state.deadlines.call_at(now + _BURST_S, self._on_update_due)

    def on_measured(self, machine: AvailableMemory, now: float) -> None:
        """Take in a look at the machine."""
        self._memory.machine = machine
        self._enforce(now)
        near = machine.available < _NEAR_FACTOR * self._memory.min_free
        pause = _MEASURE_NEAR_S if near else _MEASURE_S if len(self._state.sessions) else _MEASURE_IDLE_S
        self._state.deadlines.cancel(self._measure_deadline)
        self._measure_deadline = self._state.deadlines.call_at(now + pause, lambda _: self.start())

    def _on_update_due(self, now: float) -> None:
        self._update_deadline = None
        self._enforce(now)

    def _enforce(self, now: float) -> None:
        """Sum up, and end the largest until no sum is over its bound."""
        while True:
            self._memory.update(self._uses())
            excess = self._memory.find_excess(fresh=now >= self._relief_until)
            if excess is None:
                return
            session = excess.session
            self._state.log(f"session {session.label} of {session.owner} is ended: {excess.cause}")
            self._state.audit.record_own(None, session.agent, session.label, "memory-limit-reached", excess.cause)
            self._relief_until = now + _RELIEF_S
            self._lose(self._staff.workers[excess.worker], excess.cause, now, dead=False)

    def _uses(self) -> Iterator[WorkerMemory]:
        for worker in self._staff.workers.values():
            if (session := worker.session) is not None:
                yield WorkerMemory(worker.number, session.replaces or session, worker.usage.memory_bytes)

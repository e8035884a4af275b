"""The watch over memory: takes reports of workers and of the machine, and ends sessions when there is too little."""

from __future__ import annotations

from collections.abc import Iterator

from replbroker.core.effects import MeasureMemory
from replbroker.core.limits.memory_totals import AvailableMemory, WorkerMemory
from replbroker.core.scheduling.session_teardown import SessionTeardown
from replbroker.core.state import BrokerState
from replwire.deadlines import Deadline
from replwire.link import HeartbeatBody

_MEASURE_S, _MEASURE_NEAR_S = 2.0, 0.25  # between two measurements, depending on how much is left
_MEASURE_IDLE_S = 15.0  # without a session
_NEAR_FACTOR = 4  # times the memory that has to stay free
_BURST_S = 0.05  # reports of workers are summed up once in so long
_RELIEF_S = 0.5  # until the memory of a session that was ended is free


class MemoryPressure:
    """Watches the memory of all sessions."""

    def __init__(self, state: BrokerState, teardown: SessionTeardown) -> None:
        self._state = state
        self._teardown = teardown
        self._memory = state.memory
        self._update_deadline: Deadline | None = None
        self._measure_deadline: Deadline | None = None
        self._relief_until = 0.0  # until then a measurement does not show the last end of a session

    def start(self) -> None:
        """Ask for a measurement of the machine."""
        self._state.effects.append(MeasureMemory())

    def on_usage(self, before: HeartbeatBody, usage: HeartbeatBody, now: float) -> None:
        """Handle a worker's report of what its session uses."""
        if usage.memory_bytes != before.memory_bytes and self._update_deadline is None:
            self._update_deadline = self._state.deadlines.call_at(now + _BURST_S, self._on_update_due)

    def on_measured(self, machine: AvailableMemory, now: float) -> None:
        """Handle a measurement of the machine."""
        self._memory.set_machine(machine)
        self._enforce(now)
        near = machine.available < _NEAR_FACTOR * self._memory.min_free
        pause = _MEASURE_NEAR_S if near else _MEASURE_S if len(self._state.sessions) else _MEASURE_IDLE_S
        self._state.deadlines.cancel(self._measure_deadline)
        self._measure_deadline = self._state.deadlines.call_at(now + pause, lambda _: self.start())

    def _on_update_due(self, now: float) -> None:
        self._update_deadline = None
        self._enforce(now)

    def _enforce(self, now: float) -> None:
        """Sum up, and end the largest session until no sum is over its limit."""
        workers = self._teardown.pool.workers
        while True:
            self._memory.update(self._usage())
            excess = self._memory.find_excess(fresh=now >= self._relief_until)
            if excess is None:
                return
            session = workers[excess.worker].session
            assert session is not None
            self._state.log(f"session {session.label} of {session.owner} is ended: {excess.cause}")
            self._state.audit.record_own(None, session.agent, session.label, "memory-limit-reached", excess.cause)
            self._relief_until = now + _RELIEF_S
            self._teardown.on_worker_lost(workers[excess.worker], excess.cause, now, dead=False)

    def _usage(self) -> Iterator[WorkerMemory]:
        for worker in self._teardown.pool.workers.values():
            if (session := worker.session) is not None:
                yield WorkerMemory(worker.number, (session.replaces or session).owner, worker.usage.memory_bytes)

"""Watch over memory: reports of workers and of the machine in, sessions ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from replbroker.core.effects import LookAtMemory
from replbroker.core.memory import MemoryLeft, Use
from replbroker.core.staff import Staff
from replbroker.core.state import State
from replwire.deadlines import Deadline
from replwire.link import Usage

_FAR_S, _NEAR_S = 2.0, 0.25  # between two looks at the machine, by how much it has left
_ALONE_S = 15.0  # without a session
_NEAR = 4  # times what has to be left
_BURST_S = 0.05  # reports of workers are summed up once in so long
_RELIEF_S = 0.5  # for the memory of a session that was ended to be free


class MemoryPressure:
    """Over one state's sessions. `lose` ends one with its worker."""

    def __init__(self, state: State, staff: Staff, lose: Callable[..., None]) -> None:
        self._state = state
        self._staff = staff
        self._lose = lose
        self._memory = state.memory
        self._summing: Deadline | None = None
        self._next_look: Deadline | None = None
        self._relief = 0.0  # until then what the machine says is from before

    def start(self) -> None:
        """Ask for a look at the machine."""
        self._state.out.append(LookAtMemory())

    def told(self, before: Usage, usage: Usage, now: float) -> None:
        """Take in a report of a session's worker."""
        if usage.memory_bytes != before.memory_bytes and self._summing is None:
            self._summing = self._state.deadlines.at(now + _BURST_S, self._sum_up)

    def seen(self, machine: MemoryLeft, now: float) -> None:
        """Take in a look at the machine."""
        self._memory.machine = machine
        self._settle(now)
        near = machine.available < _NEAR * self._memory.least_free
        pause = _NEAR_S if near else _FAR_S if len(self._state.sessions) else _ALONE_S
        self._state.deadlines.cancel(self._next_look)
        self._next_look = self._state.deadlines.at(now + pause, lambda _: self.start())

    def _sum_up(self, now: float) -> None:
        self._summing = None
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Sum up, and end the largest until no sum is over its bound."""
        while True:
            self._memory.sum_up(self._uses())
            excess = self._memory.excess(fresh=now >= self._relief)
            if excess is None:
                return
            session = excess.session
            self._state.note(f"session {session.label} of {session.owner} is ended: {excess.cause}")
            self._state.trail.own(None, session.agent, session.label, "memory-limit-reached", excess.cause)
            self._relief = now + _RELIEF_S
            self._lose(self._staff.workers[excess.worker], excess.cause, now, dead=False)

    def _uses(self) -> Iterator[Use]:
        for worker in self._staff.workers.values():
            if (session := worker.session) is not None:
                yield Use(worker.number, session.stands_for or session, worker.usage.memory_bytes)

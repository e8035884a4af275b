"""Who may run now: so many evals at once, and a fair turn between agents when there are more.

Only the first eval of a session stands here, so a slow session never holds more than one slot.
Deficit round robin with one eval as the quantum: an agent that waits is served after at most one
eval of each other agent that waits (Shreedhar and Varghese, SIGCOMM 1995).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Gate(Generic[T]):
    """The single owner of the slots: a release frees one or hands it straight to the next in turn."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.taken = 0
        self._turns: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._turns.values()))

    def enter(self, agent: str, item: T) -> bool:
        """Take a slot if one is free, else stand in the agent's line and return False."""
        if self.taken < self.slots and not self._turns:
            self.taken += 1
            return True
        self._turns.setdefault(agent, deque()).append(item)
        return False

    def release(self) -> T | None:
        """Give a slot back. Returns the item that has it now; None when nobody waits, or there are fewer slots now."""
        self.taken -= 1
        return self.fill()

    def fill(self) -> T | None:
        """Give a free slot to the next in turn, if there are both. Also to be called when there are more slots."""
        if not self._turns or self.taken >= self.slots:
            return None
        self.taken += 1
        agent, line = self._turns.popitem(last=False)
        item = line.popleft()
        if line:
            self._turns[agent] = line  # goes to the end: every other agent comes before its next one
        return item

    def leave(self, agent: str, item: T) -> None:
        """Take a waiting item out. Raises ValueError when it does not wait."""
        line = self._turns.get(agent)
        if line is None:
            raise ValueError("no such line")
        line.remove(item)
        if not line:
            del self._turns[agent]

    def waiting_by_agent(self) -> dict[str, int]:
        """How many wait, by agent."""
        return {agent: len(line) for agent, line in self._turns.items()}

"""Slots of evals: so many run at once, and turns are fair when more want to.

Only the first eval of a session stands here, so a slow session never holds more than one slot. Turns go round between
identities, and within one between its agents: one that waits is served after at most one eval of each other identity
that waits, however many labels that one has (deficit round robin with one eval as the quantum: Shreedhar and Varghese,
SIGCOMM 1995). Whoever has as many slots as it may is passed over, and so are long evals while they have all of theirs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from replbroker.core.limits.quotas import SLOTS, Holder, Quotas

T = TypeVar("T")


class SlotRequest(NamedTuple):
    """The account that a slot is wanted on, and whether it may be kept for long."""

    holder: Holder
    long: bool = False


class _AgentQueue(Generic[T]):
    """Waiting items of one agent, in order of arrival within their two kinds."""

    __slots__ = ("count", "long", "short")

    def __init__(self) -> None:
        self.count = 0
        self.short: deque[tuple[int, T]] = deque()
        self.long: deque[tuple[int, T]] = deque()

    def __len__(self) -> int:
        return len(self.short) + len(self.long)

    def add(self, item: T, *, long: bool) -> None:
        self.count += 1
        (self.long if long else self.short).append((self.count, item))

    def next(self, *, with_long: bool) -> deque[tuple[int, T]] | None:
        """Return the kind whose first item comes next."""
        if not (with_long and self.long):
            return self.short or None
        return self.long if not self.short or self.long[0] < self.short[0] else self.short


class FairSemaphore(Generic[T]):
    """The single owner of the slots: a release frees one, or hands it straight to the next in turn."""

    def __init__(self, quotas: Quotas, slots: Callable[[], int], long_slots: Callable[[], int]) -> None:
        """`long_slots`: how many of the slots long evals may have."""
        self._quotas = quotas
        self._capacity = slots
        self._long_capacity = long_slots
        self.long_in_use = 0
        self._queues: OrderedDict[str, OrderedDict[str, _AgentQueue[T]]] = OrderedDict()

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self._capacity()

    @property
    def in_use(self) -> int:
        """The number of slots in use."""
        return self._quotas.total(SLOTS)

    def __len__(self) -> int:
        return sum(len(line) for lines in self._queues.values() for line in lines.values())

    def has_room(self, turn: SlotRequest) -> bool:
        """Return whether there is a slot for a request."""
        return (not turn.long or self._has_long()) and self._quotas.has_room(SLOTS, turn.holder)

    def _has_long(self) -> bool:
        return self.long_in_use < self._long_capacity()

    def acquire(self, turn: SlotRequest, item: T) -> bool:
        """Take a slot if there is one, else stand in the agent's line and return False. Whoever waits already waits for
        something that this one does not need, or would not get in either."""
        if self.has_room(turn):
            self._charge(turn)
            return True
        lines = self._queues.setdefault(turn.holder.identity, OrderedDict())
        lines.setdefault(turn.holder.agent, _AgentQueue()).add(item, long=turn.long)
        return False

    def _charge(self, turn: SlotRequest) -> None:
        self._quotas.charge(SLOTS, turn.holder)
        self.long_in_use += turn.long

    def release(self, turn: SlotRequest) -> list[T]:
        """Give a slot back. Returns the items that have one now: mostly one, or none when nobody waits."""
        self._quotas.release(SLOTS, turn.holder)
        self.long_in_use -= turn.long
        return self.fill()

    def fill(self) -> list[T]:
        """Give slots that are free to those whose turn it is. Also to be called when there are more than there were."""
        following = []
        while self._queues and (item := self._next()) is not None:
            following.append(item)
        return following

    def _next(self) -> T | None:
        for identity, lines in self._queues.items():
            if not self._quotas.has_room(SLOTS, Holder(identity)):
                continue
            for agent, line in lines.items():
                found = line.next(with_long=self._has_long())
                if found is None:
                    continue
                _, item = found.popleft()
                self._charge(SlotRequest(Holder(identity, agent), found is line.long))
                lines.move_to_end(agent)  # every other agent comes before its next one
                self._queues.move_to_end(identity)
                self._drop_empty(identity, agent)
                return item
        return None

    def cancel(self, turn: SlotRequest, item: T) -> None:
        """Take a waiting item out. Raises ValueError when it does not wait."""
        identity, agent = turn.holder
        line = self._queues.get(identity, OrderedDict()).get(agent)
        if line is None:
            raise ValueError("no such line")
        kind = line.long if turn.long else line.short
        entry = next((entry for entry in kind if entry[1] is item), None)
        if entry is None:
            raise ValueError("it does not wait")
        kind.remove(entry)
        self._drop_empty(identity, agent)

    def _drop_empty(self, identity: str, agent: str) -> None:
        """Lines where nobody waits go."""
        if not self._queues[identity][agent]:
            del self._queues[identity][agent]
        if not self._queues[identity]:
            del self._queues[identity]

    def count_waiting(self) -> dict[SlotRequest, int]:
        """Count the waiting items by account and kind."""
        found: dict[SlotRequest, int] = {}
        for identity, lines in self._queues.items():
            for agent, line in lines.items():
                for long, kind in ((False, line.short), (True, line.long)):
                    if kind:
                        found[SlotRequest(Holder(identity, agent), long)] = len(kind)
        return found

"""Slots of evals: a semaphore with a fair order among those that wait.

Only the first eval of a session waits here, so a slow session never holds more than one slot. Slots go round between
identities, and within an identity between its agents: one that waits is served after at most one eval of each other
identity that waits, however many labels that one uses (deficit round robin with one eval as the quantum: Shreedhar and
Varghese, SIGCOMM 1995). An identity that has as many slots as it may is passed over, and so are long evals while they
have all of theirs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, NamedTuple, TypeVar

from replbroker.core.limits.quotas import SLOTS, Holder, Quotas

T = TypeVar("T")


class SlotRequest(NamedTuple):
    """The account that a slot is wanted on, and whether it may be held for long."""

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
    """The single owner of the slots: a release frees one, or hands it straight to the next in turn.

    Attributes:
        capacity: The number of slots.
        long_capacity: The number of slots that long evals may have.
        long_in_use: The number of slots that long evals have.
    """

    def __init__(self, quotas: Quotas, capacity: int, long_capacity: int) -> None:
        self._quotas = quotas
        self.capacity = capacity
        self.long_capacity = long_capacity
        self.long_in_use = 0
        self._queues: OrderedDict[str, OrderedDict[str, _AgentQueue[T]]] = OrderedDict()

    @property
    def in_use(self) -> int:
        """The number of slots in use."""
        return self._quotas.total(SLOTS)

    def __len__(self) -> int:
        return sum(len(queue) for queues in self._queues.values() for queue in queues.values())

    def has_room(self, request: SlotRequest) -> bool:
        """Return whether there is a slot for a request."""
        return (not request.long or self.long_in_use < self.long_capacity) and self._quotas.has_room(
            SLOTS, request.holder
        )

    def try_acquire(self, request: SlotRequest) -> bool:
        """Take a slot if there is one, before everything that waits: that needs another kind, or may not have one."""
        if request.long and self.long_in_use >= self.long_capacity:
            return False
        if not self._quotas.has_room(SLOTS, request.holder):
            return False
        self.take(request)
        return True

    def take(self, request: SlotRequest) -> None:
        """Take a slot, whether there is one or not, for an item that has one already."""
        self._quotas.charge(SLOTS, request.holder)
        self.long_in_use += request.long

    def acquire(self, request: SlotRequest, item: T) -> bool:
        """Take a slot if there is one; else put the item at the end of its agent's queue and return False."""
        if self.try_acquire(request):
            return True
        queues = self._queues.setdefault(request.holder.identity, OrderedDict())
        queues.setdefault(request.holder.agent, _AgentQueue()).add(item, long=request.long)
        return False

    def release(self, request: SlotRequest) -> list[T]:
        """Give a slot back.

        Returns:
            The items that have a slot now: mostly one, or none when nothing waits.
        """
        self._quotas.release(SLOTS, request.holder)
        self.long_in_use -= request.long
        return self.fill() if self._queues else []

    def fill(self) -> list[T]:
        """Give free slots to the items whose turn it is. To be called when the capacity has grown, too."""
        following = []
        while self._queues and (item := self._next()) is not None:
            following.append(item)
        return following

    def _next(self) -> T | None:
        for identity, queues in self._queues.items():
            if not self._quotas.has_room(SLOTS, Holder(identity)):
                continue
            for agent, queue in queues.items():
                found = queue.next(with_long=self.long_in_use < self.long_capacity)
                if found is None:
                    continue
                _, item = found.popleft()
                self._quotas.charge(SLOTS, Holder(identity, agent))
                self.long_in_use += found is queue.long
                queues.move_to_end(agent)  # every other agent comes before its next one
                self._queues.move_to_end(identity)
                self._drop_empty(identity, agent)
                return item
        return None

    def cancel(self, request: SlotRequest, item: T) -> None:
        """Take out an item that waits. Raises ValueError when it does not wait."""
        identity, agent = request.holder
        queue = self._queues.get(identity, OrderedDict()).get(agent)
        if queue is None:
            raise ValueError("no such queue")
        kind = queue.long if request.long else queue.short
        entry = next((entry for entry in kind if entry[1] is item), None)
        if entry is None:
            raise ValueError("it does not wait")
        kind.remove(entry)
        self._drop_empty(identity, agent)

    def _drop_empty(self, identity: str, agent: str) -> None:
        if not self._queues[identity][agent]:
            del self._queues[identity][agent]
        if not self._queues[identity]:
            del self._queues[identity]

    def count_waiting(self) -> dict[SlotRequest, int]:
        """Count the waiting items by account and kind."""
        found: dict[SlotRequest, int] = {}
        for identity, queues in self._queues.items():
            for agent, queue in queues.items():
                for long, kind in ((False, queue.short), (True, queue.long)):
                    if kind:
                        found[SlotRequest(Holder(identity, agent), long)] = len(kind)
        return found

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

from replbroker.core.quotas import SLOTS, Holder, Quotas

T = TypeVar("T")


class SlotRequest(NamedTuple):
    """The account that a slot is wanted on, and whether it may be kept for long."""

    holder: Holder
    long: bool = False


class _AgentLine(Generic[T]):
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


class Gate(Generic[T]):
    """The single owner of the slots: a release frees one, or hands it straight to the next in turn."""

    def __init__(self, quotas: Quotas, slots: Callable[[], int], long_slots: Callable[[], int]) -> None:
        """`long_slots`: how many of the slots long evals may have."""
        self._quotas = quotas
        self._slots = slots
        self._long_slots = long_slots
        self.long_taken = 0
        self._turns: OrderedDict[str, OrderedDict[str, _AgentLine[T]]] = OrderedDict()

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self._slots()

    @property
    def taken(self) -> int:
        """The number of slots in use."""
        return self._quotas.total(SLOTS)

    def __len__(self) -> int:
        return sum(len(line) for lines in self._turns.values() for line in lines.values())

    def may_enter(self, turn: SlotRequest) -> bool:
        """Return whether there is a slot for a request."""
        return (not turn.long or self._has_long()) and self._quotas.has_room(SLOTS, turn.holder)

    def _has_long(self) -> bool:
        return self.long_taken < self._long_slots()

    def enter(self, turn: SlotRequest, item: T) -> bool:
        """Take a slot if there is one, else stand in the agent's line and return False. Whoever waits already waits for
        something that this one does not need, or would not get in either."""
        if self.may_enter(turn):
            self._take(turn)
            return True
        lines = self._turns.setdefault(turn.holder.identity, OrderedDict())
        lines.setdefault(turn.holder.agent, _AgentLine()).add(item, long=turn.long)
        return False

    def _take(self, turn: SlotRequest) -> None:
        self._quotas.charge(SLOTS, turn.holder)
        self.long_taken += turn.long

    def release(self, turn: SlotRequest) -> list[T]:
        """Give a slot back. Returns the items that have one now: mostly one, or none when nobody waits."""
        self._quotas.release(SLOTS, turn.holder)
        self.long_taken -= turn.long
        return self.fill()

    def fill(self) -> list[T]:
        """Give slots that are free to those whose turn it is. Also to be called when there are more than there were."""
        following = []
        while self._turns and (item := self._next()) is not None:
            following.append(item)
        return following

    def _next(self) -> T | None:
        for identity, lines in self._turns.items():
            if not self._quotas.has_room(SLOTS, Holder(identity)):
                continue
            for agent, line in lines.items():
                found = line.next(with_long=self._has_long())
                if found is None:
                    continue
                _, item = found.popleft()
                self._take(SlotRequest(Holder(identity, agent), found is line.long))
                lines.move_to_end(agent)  # every other agent comes before its next one
                self._turns.move_to_end(identity)
                self._settle(identity, agent)
                return item
        return None

    def leave(self, turn: SlotRequest, item: T) -> None:
        """Take a waiting item out. Raises ValueError when it does not wait."""
        identity, agent = turn.holder
        line = self._turns.get(identity, OrderedDict()).get(agent)
        if line is None:
            raise ValueError("no such line")
        kind = line.long if turn.long else line.short
        entry = next((entry for entry in kind if entry[1] is item), None)
        if entry is None:
            raise ValueError("it does not wait")
        kind.remove(entry)
        self._settle(identity, agent)

    def _settle(self, identity: str, agent: str) -> None:
        """Lines where nobody waits go."""
        if not self._turns[identity][agent]:
            del self._turns[identity][agent]
        if not self._turns[identity]:
            del self._turns[identity]

    def waiting(self) -> dict[SlotRequest, int]:
        """Count the waiting items by account and kind."""
        found: dict[SlotRequest, int] = {}
        for identity, lines in self._turns.items():
            for agent, line in lines.items():
                for long, kind in ((False, line.short), (True, line.long)):
                    if kind:
                        found[SlotRequest(Holder(identity, agent), long)] = len(kind)
        return found

"""Tree of a session's checkpoints, and which evals each of them contains. Pure: no process, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

_MAX_EVALS = 1000  # remembered between two checkpoints; older ones are not listed as undone


@dataclass(slots=True)
class CheckpointNode:
    """A checkpoint. `evals` ran between its parent and this moment, `eval_id` is the last eval that it contains."""

    number: int
    parent: int | None
    evals: list[int]
    eval_id: int
    automatic: bool
    created: str
    name: str | None = None


@dataclass(slots=True)
class StateChange:
    """Result of going to a checkpoint: evals that count no more, and evals undone before that count again."""

    undone: list[int]
    redone: list[int]


@dataclass(slots=True)
class CheckpointTree:
    """Checkpoints by number, and the session's position: the checkpoint it goes on from, and the evals since.

    `changed` is False only if the state is exactly that of the base.
    """

    base: int | None = None
    since: list[int] = field(default_factory=list)
    changed: bool = True
    _nodes: dict[int, CheckpointNode] = field(default_factory=dict)
    _count: int = 0

    def __iter__(self) -> Iterator[CheckpointNode]:
        """Iterate over the checkpoints, oldest first."""
        return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        """Return the number of checkpoints."""
        return len(self._nodes)

    @property
    def last_eval(self) -> int:
        """Last eval that the present state contains; 0 if none."""
        if self.since:
            return self.since[-1]
        return 0 if self.base is None else self._nodes[self.base].eval_id

    def note_eval(self, eval_id: int) -> None:
        """Note that an eval begins, which may change anything."""
        self.since = [*self.since[1 - _MAX_EVALS :], eval_id]
        self.changed = True

    def add(self, created: str, *, automatic: bool, name: str | None = None) -> CheckpointNode:
        """Add a checkpoint of the present state."""
        self._count += 1
        made = CheckpointNode(self._count, self.base, self.since, self.last_eval, automatic, created, name)
        self._nodes[made.number] = made
        self.base, self.since, self.changed = made.number, [], False
        return made

    def find(self, reference: int | str) -> CheckpointNode | None:
        """Find a checkpoint by number or name; digits are a number."""
        if isinstance(reference, str) and not reference.isdecimal():
            return next((each for each in self._nodes.values() if each.name == reference), None)
        return self._nodes.get(int(reference))

    def find_undo(self) -> tuple[CheckpointNode | None, list[int]]:
        """Find the newest checkpoint without the last eval; return it, if there is one, and the evals it would undo."""
        undone, at = self.since, self.base
        while not undone and at is not None:
            undone, at = self._nodes[at].evals, self._nodes[at].parent
        return (None if at is None or not undone else self._nodes[at]), undone

    def go_to(self, number: int) -> StateChange:
        """Make a checkpoint the base of the present state."""
        here, there = [*self.line(self.base), *self.since], self.line(number)
        kept, left = set(there), set(here)
        self.base, self.since, self.changed = number, [], False
        return StateChange([each for each in here if each not in kept], [each for each in there if each not in left])

    def drop(self, number: int) -> None:
        """Forget a checkpoint; what follows it contains its evals."""
        removed = self._nodes.pop(number, None)
        if removed is None:
            return
        for each in self._nodes.values():
            if each.parent == number:
                each.parent, each.evals = removed.parent, [*removed.evals, *each.evals][-_MAX_EVALS:]
        if self.base == number:
            self.base, self.since, self.changed = removed.parent, [*removed.evals, *self.since][-_MAX_EVALS:], True

    def discard(self, number: int) -> None:
        """Drop a checkpoint that was never completed; its number is free again if it is the newest."""
        self.drop(number)
        if number == self._count:
            self._count -= 1

    def oldest_droppable(self) -> CheckpointNode | None:
        """Return the oldest checkpoint without a name that the present state does not go on from."""
        return next((each for each in self._nodes.values() if each.name is None and each.number != self.base), None)

    def line(self, number: int | None) -> list[int]:
        """Return the evals that a checkpoint contains, oldest first."""
        parts: list[list[int]] = []
        while number is not None:
            parts.append(self._nodes[number].evals)
            number = self._nodes[number].parent
        return [each for part in reversed(parts) for each in part]

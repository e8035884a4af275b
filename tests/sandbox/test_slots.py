"""Which host user a root broker gives to a session."""

from __future__ import annotations

from replbroker.launch.sandbox import Slots


def test_no_two_live_workers_have_the_same_however_many_came_between() -> None:
    slots = Slots(5)
    first = slots.take(1)
    for worker in range(2, 50):
        assert slots.take(worker) != first
        slots.give_back(worker)
    slots.give_back(1)
    assert len({slots.take(worker) for worker in range(50, 55)}) == 5


def test_what_was_just_given_back_is_not_the_next() -> None:
    slots = Slots(5)
    given = []
    for worker in range(5):
        given.append(slots.take(worker))
        slots.give_back(worker)
    assert len(set(given)) == 5


def test_where_there_are_not_enough_they_are_shared() -> None:
    slots = Slots(2)
    assert len([slots.take(worker) for worker in range(5)]) == 5

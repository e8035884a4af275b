"""Host users that a root broker gives to sessions."""

from __future__ import annotations

from replbroker.launch.sandbox_provider import UidSlots


def test_no_two_live_workers_have_the_same_however_many_came_between() -> None:
    slots = UidSlots(5)
    first = slots.acquire(1)
    for worker in range(2, 50):
        assert slots.acquire(worker) != first
        slots.release(worker)
    slots.release(1)
    assert len({slots.acquire(worker) for worker in range(50, 55)}) == 5


def test_what_was_just_given_back_is_not_the_next() -> None:
    slots = UidSlots(5)
    given = []
    for worker in range(5):
        given.append(slots.acquire(worker))
        slots.release(worker)
    assert len(set(given)) == 5


def test_where_there_are_not_enough_they_are_shared() -> None:
    slots = UidSlots(2)
    assert len([slots.acquire(worker) for worker in range(5)]) == 5

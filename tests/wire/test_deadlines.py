"""The heap of what is due: order, cancelling, and no memory of what was cancelled."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replwire.deadlines import Deadline, Deadlines, GapDetector


def _append(ran: list[int], index: int, _: float) -> None:
    ran.append(index)


def note(ran: list[str], name: str) -> Callable[[float], None]:
    return lambda now: ran.append(f"{name}@{now:g}")


def test_what_is_due_runs_earliest_first_and_in_order_of_asking_when_equal() -> None:
    deadlines, ran = Deadlines(), list[str]()
    for name, when in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("also-a", 1.0), ("later", 9.0)):
        deadlines.call_at(when, note(ran, name))
    assert deadlines.next_due() == 1.0
    deadlines.run_due(0.5)
    assert ran == []
    deadlines.run_due(3.0)
    assert ran == ["a@3", "also-a@3", "b@3", "c@3"]
    assert (deadlines.next_due(), len(deadlines)) == (9.0, 1)


def test_what_was_cancelled_never_runs() -> None:
    deadlines, ran = Deadlines(), list[str]()
    first = deadlines.call_at(1.0, note(ran, "first"))
    deadlines.call_at(2.0, note(ran, "second"))
    deadlines.cancel(first)
    deadlines.cancel(first)
    deadlines.cancel(None)
    assert (deadlines.next_due(), len(deadlines)) == (2.0, 1)
    deadlines.run_due(5.0)
    assert ran == ["second@5"]
    deadlines.cancel(first)
    assert (deadlines.next_due(), len(deadlines)) == (None, 0)


def test_what_has_run_may_be_cancelled() -> None:
    deadlines, ran = Deadlines(), list[str]()
    done = deadlines.call_at(1.0, note(ran, "done"))
    deadlines.call_at(2.0, note(ran, "other"))
    deadlines.run_due(1.0)
    deadlines.cancel(done)
    assert len(deadlines) == 1


def test_an_action_may_add_and_cancel_others() -> None:
    deadlines, ran = Deadlines(), list[str]()
    victim = deadlines.call_at(2.0, note(ran, "victim"))

    def action(now: float) -> None:
        deadlines.cancel(victim)
        deadlines.call_at(now, note(ran, "at once"))
        deadlines.call_at(now + 1, note(ran, "later"))

    deadlines.call_at(1.0, action)
    deadlines.run_due(2.0)
    assert ran == ["at once@2"]
    assert deadlines.next_due() == 3.0


def test_cancelled_ones_do_not_pile_up() -> None:
    deadlines = Deadlines()
    kept = [deadlines.call_at(float(number), lambda _: None) for number in range(100)]
    for number in range(100_000):
        deadlines.cancel(deadlines.call_at(1e9 + number, lambda _: None))
        assert len(deadlines._heap) <= 2 * len(kept) + 66
    assert len(deadlines) == 100
    assert deadlines.next_due() == 0.0


@given(st.lists(st.tuples(st.sampled_from(["at", "cancel", "run"]), st.integers(0, 300)), max_size=400))
def test_the_heap_agrees_with_a_list(steps: list[tuple[str, int]]) -> None:
    deadlines, ran, expected = Deadlines(), list[int](), list[int]()
    made: list[Deadline] = []
    waiting: dict[int, int] = {}
    for what, number in steps:
        if what == "at":
            made.append(deadlines.call_at(number, partial(_append, ran, len(made))))
            waiting[len(made) - 1] = number
        elif what == "cancel" and made:
            deadlines.cancel(made[number % len(made)])
            waiting.pop(number % len(made), None)
        elif what == "run":
            deadlines.run_due(number)
            due = sorted((when, index) for index, when in waiting.items() if when <= number)
            expected += [index for _, index in due]
            for _, index in due:
                del waiting[index]
        assert ran == expected
        assert (deadlines.next_due(), len(deadlines)) == (min(waiting.values(), default=None), len(waiting))


def test_what_is_put_off_keeps_its_order_and_can_still_be_cancelled() -> None:
    deadlines, ran = Deadlines(), list[str]()
    for name, when in (("b", 2.0), ("a", 1.0), ("also-a", 1.0)):
        deadlines.call_at(when, note(ran, name))
    cancelled = deadlines.call_at(1.5, note(ran, "cancelled"))
    deadlines.shift(10.0)
    deadlines.call_at(11.5, note(ran, "new"))
    deadlines.cancel(cancelled)
    assert (deadlines.next_due(), len(deadlines), cancelled.when) == (11.0, 4, 11.5)
    deadlines.run_due(12.0)
    assert ran == ["a@12", "also-a@12", "new@12", "b@12"]


def test_a_sleep_that_lasts_longer_than_was_asked_for_is_a_gap() -> None:
    gaps = GapDetector(now=100.0, computed=5.0)
    gaps.before_sleep(1.0, now=100.0, computed=5.0)
    assert gaps.after_sleep(now=100.5, computed=5.0) == 0
    gaps.before_sleep(1.0, now=100.5, computed=5.0)
    assert gaps.after_sleep(now=121.5, computed=5.0) == 20.0
    gaps.before_sleep(1.0, now=121.5, computed=5.0)
    assert gaps.after_sleep(now=122.6, computed=5.0) == 0  # a busy machine wakes its sleepers late


def test_time_between_two_sleeps_is_a_gap_unless_it_was_computed_in() -> None:
    gaps = GapDetector(now=0.0, computed=0.0)
    gaps.before_sleep(1.0, now=30.0, computed=29.9)  # a flood of requests
    assert gaps.after_sleep(now=30.0, computed=29.9) == 0
    gaps.before_sleep(1.0, now=70.0, computed=30.9)
    assert gaps.after_sleep(now=70.0, computed=30.9) == 39.0


def test_what_there_is_no_memory_for_is_due_again_and_holds_up_nothing_else() -> None:
    deadlines, ran, lacks = Deadlines(), list[str](), [MemoryError()]

    def action(now: float) -> None:
        if lacks:
            raise lacks.pop()
        note(ran, "a")(now)

    deadlines.call_at(1.0, action)
    deadlines.call_at(1.5, note(ran, "b"))
    with pytest.raises(MemoryError):
        deadlines.run_due(2.0)
    deadlines.run_due(2.0)
    assert ran == ["b@2"]
    assert deadlines.next_due() == 3.0
    deadlines.run_due(3.0)
    assert ran == ["b@2", "a@3"]
    assert len(deadlines) == 0

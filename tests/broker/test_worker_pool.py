"""The worker pool: filled at the start, refilled after each worker taken, never beyond its limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness

STARTING_AT_ONCE = 8


def counts(harness: CoreHarness) -> tuple[int, int, int]:
    """Return the numbers of starting, warm and assigned workers."""
    count = harness.core.scheduler.pool.count_by_state()
    return count["starting"], count["warm"], count["assigned"]


def test_the_pool_is_filled_at_the_start_and_behind_each_session(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(warm=2)
    assert counts(harness) == (0, 2, 0)
    harness.open("a")
    assert (harness.worker("a").number, counts(harness)) == (1, (0, 1, 1))  # not while the answer is on its way
    harness.wait(0.03)
    assert counts(harness) == (0, 2, 1)
    harness.request("reset", session="a")
    harness.wait(0.03)
    assert (harness.worker("a").number, counts(harness)) == (2, (0, 2, 1))
    harness.request("close", session="a")
    assert counts(harness) == (0, 2, 0)
    assert harness.spawned == [1, 2, 3, 4]


def test_a_warm_worker_serves_at_once(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False, warm=1)
    harness.workers[1].send_ready()
    opening = harness.send("new-session", name="work")
    harness.workers[1].send_assigned()
    assert harness.final_reply(opening)["status"] == ["done"]
    harness.wait(0.03)
    assert counts(harness) == (1, 0, 1)


def test_sessions_are_served_in_the_order_of_their_asking(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    for name in ("a", "b", "c"):
        harness.send("new-session", name=name)
    for number in (3, 1, 2):
        harness.workers[number].send_ready()
    assert [harness.session(name).worker for name in ("a", "b", "c")] == [3, 1, 2]


def test_a_burst_of_sessions_starts_a_bounded_number_of_workers(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False, warm=2)
    asked = [harness.send("new-session") for _ in range(30)]
    assert counts(harness) == (STARTING_AT_ONCE, 0, 0)
    for number in harness.spawned:  # grows meanwhile
        harness.workers[number].send_ready()
        assert counts(harness)[0] <= STARTING_AT_ONCE
    for session in harness.state.sessions:
        harness.workers[session.worker or 0].send_assigned()
    assert not any(harness.is_pending(each) for each in asked)
    assert counts(harness) == (0, 2, 30)


def test_workers_of_sessions_that_went_are_used_before_new_ones_start(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    for _ in range(5):
        for name in "abc":
            harness.send("new-session", name=name)
        for name in "abc":
            harness.send("close", session=name)
    assert harness.spawned == [1, 2, 3]


@pytest.mark.parametrize("how", ["dies", "gone", "breaks the protocol"])
def test_a_warm_worker_that_is_lost_is_replaced(new_harness: Callable[..., CoreHarness], how: str) -> None:
    harness = new_harness(warm=1)
    worker = harness.workers[1]
    if how == "dies":
        worker.exit()
    elif how == "gone":
        worker.send_interpreter_exited("exit code 1")
    else:
        harness.apply(harness.core.handle_worker_frame(1, b"", harness.now))
    assert (harness.spawned, counts(harness)) == ([1, 2], (0, 1, 0))
    assert any("worker 1 (python, warm)" in note for note in harness.log_lines)
    harness.open()
    assert harness.worker().number == 2


def test_a_worker_is_never_used_for_a_second_session(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(warm=1)
    seen = []
    for _ in range(5):
        harness.open()
        seen.append(harness.worker().number)
        harness.request("close", session="work")
    assert seen == sorted(set(seen))
    assert harness.killed == seen


def test_a_pool_that_cannot_be_filled_stops_trying_until_somebody_asks(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False, warm=2)
    for number in (1, 2):
        harness.workers[number].exit("exit code 1")
    assert (harness.spawned, counts(harness)) == ([1, 2], (0, 0, 0))
    harness.wait(3600)
    assert harness.spawned == [1, 2]
    harness.auto = True
    harness.open()
    assert counts(harness) == (0, 2, 1)


def test_a_death_that_nobody_can_place_changes_nothing(harness: CoreHarness) -> None:
    harness.apply(harness.core.handle_worker_exit(99, "who?", harness.now))
    harness.apply(harness.core.handle_worker_frame(99, b"", harness.now))
    assert (harness.log_lines, harness.killed) == ([], [])


def test_environments_that_hold_up_their_start_hold_up_nobody_elses(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False, max_sessions=60)
    for peer, identity in ((b"ada", "uid:1"), (b"bob", "uid:2"), (b"eve", "uid:3")):
        harness.core.set_identity(peer, identity)
    for number in range(12):
        harness.send("new-session", b"ada", name=f"s{number}", runtime=f"/slow/{number}")
    assert len(harness.spawned) == 3
    harness.send("new-session", b"bob", name="his", runtime="/quick")
    assert len(harness.spawned) == 4
    for number in range(12):
        harness.send("new-session", b"bob", name=f"s{number}", runtime=f"/slow/{number}")
    assert len(harness.spawned) == 6
    harness.send("new-session", b"eve", name="hers")
    assert len(harness.spawned) == 7
    harness.workers[1].send_interpreter_exited("exit code 1")
    assert [harness.specs[number].environment for number in sorted(harness.specs)][-1] == "/slow/3"

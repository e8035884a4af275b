"""The warm pool: filled at the start, refilled behind whoever takes a worker, and never beyond its bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness

STARTING_AT_ONCE = 8


def counts(table: CoreHarness) -> tuple[int, int, int]:
    """Workers that start, that are warm, that have a session."""
    count = table.core.scheduler.pool.count_by_state()
    return count["starting"], count["warm"], count["claimed"]


def test_the_pool_is_filled_at_the_start_and_behind_each_session(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(warm=2)
    assert counts(table) == (0, 2, 0)
    table.open("a")
    assert (table.worker("a").number, counts(table)) == (1, (0, 1, 1))  # not while the answer is on its way
    table.wait(0.03)
    assert counts(table) == (0, 2, 1)
    table.request("reset", session="a")
    table.wait(0.03)
    assert (table.worker("a").number, counts(table)) == (2, (0, 2, 1))
    table.request("close", session="a")
    assert counts(table) == (0, 2, 0)
    assert table.spawned == [1, 2, 3, 4]


def test_a_warm_worker_serves_at_once(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False, warm=1)
    table.workers[1].send_ready()
    opening = table.send("new-session", name="work")
    table.workers[1].send_assigned()
    assert table.final_reply(opening)["status"] == ["done"]
    table.wait(0.03)
    assert counts(table) == (1, 0, 1)


def test_sessions_are_served_in_the_order_of_their_asking(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    for name in ("a", "b", "c"):
        table.send("new-session", name=name)
    for number in (3, 1, 2):
        table.workers[number].send_ready()
    assert [table.session(name).worker for name in ("a", "b", "c")] == [3, 1, 2]


def test_a_burst_of_sessions_starts_a_bounded_number_of_workers(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False, warm=2)
    asked = [table.send("new-session") for _ in range(30)]
    assert counts(table) == (STARTING_AT_ONCE, 0, 0)
    for number in table.spawned:  # grows meanwhile
        table.workers[number].send_ready()
        assert counts(table)[0] <= STARTING_AT_ONCE
    for session in table.state.sessions:
        table.workers[session.worker or 0].send_assigned()
    assert not any(table.is_pending(each) for each in asked)
    assert counts(table) == (0, 2, 30)


def test_workers_of_sessions_that_went_are_used_before_new_ones_start(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    for _ in range(5):
        for name in "abc":
            table.send("new-session", name=name)
        for name in "abc":
            table.send("close", session=name)
    assert table.spawned == [1, 2, 3]


@pytest.mark.parametrize("how", ["dies", "gone", "breaks the protocol"])
def test_a_warm_worker_that_is_lost_is_replaced(new_table: Callable[..., CoreHarness], how: str) -> None:
    table = new_table(warm=1)
    worker = table.workers[1]
    if how == "dies":
        worker.exit()
    elif how == "gone":
        worker.send_interpreter_exited("exit code 1")
    else:
        table.apply(table.core.handle_worker_frame(1, b"", table.now))
    assert (table.spawned, counts(table)) == ([1, 2], (0, 1, 0))
    assert any("worker 1 (python, warm)" in note for note in table.log_lines)
    table.open()
    assert table.worker().number == 2


def test_a_worker_is_never_used_for_a_second_session(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(warm=1)
    seen = []
    for _ in range(5):
        table.open()
        seen.append(table.worker().number)
        table.request("close", session="work")
    assert seen == sorted(set(seen))
    assert table.killed == seen


def test_a_pool_that_cannot_be_filled_stops_trying_until_somebody_asks(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False, warm=2)
    for number in (1, 2):
        table.workers[number].exit("exit code 1")
    assert (table.spawned, counts(table)) == ([1, 2], (0, 0, 0))
    table.wait(3600)
    assert table.spawned == [1, 2]
    table.auto = True
    table.open()
    assert counts(table) == (0, 2, 1)


def test_a_death_that_nobody_can_place_changes_nothing(table: CoreHarness) -> None:
    table.apply(table.core.handle_worker_exit(99, "who?", table.now))
    table.apply(table.core.handle_worker_frame(99, b"", table.now))
    assert (table.log_lines, table.killed) == ([], [])


def test_environments_that_hold_up_their_start_hold_up_nobody_elses(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False, max_sessions=60)
    for peer, identity in ((b"ada", "uid:1"), (b"bob", "uid:2"), (b"eve", "uid:3")):
        table.core.set_identity(peer, identity)
    for number in range(12):
        table.send("new-session", b"ada", name=f"s{number}", runtime=f"/slow/{number}")
    assert len(table.spawned) == 3
    table.send("new-session", b"bob", name="his", runtime="/quick")
    assert len(table.spawned) == 4
    for number in range(12):
        table.send("new-session", b"bob", name=f"s{number}", runtime=f"/slow/{number}")
    assert len(table.spawned) == 6
    table.send("new-session", b"eve", name="hers")
    assert len(table.spawned) == 7
    table.workers[1].send_interpreter_exited("exit code 1")
    assert [table.specs[number].environment for number in sorted(table.specs)][-1] == "/slow/3"

"""Who runs when: one at a time in a session, first come first served, then a slot, then fair turns."""

from __future__ import annotations

from collections.abc import Callable

from core_harness import CoreHarness


def test_a_session_runs_one_eval_at_a_time_in_order(table: CoreHarness) -> None:
    asked = [table.eval() for _ in range(5)]
    for number, each in enumerate(asked):
        assert table.running_evals(*asked) == [each]
        assert table.finish(each)["status"] == ["done"]
        assert [table.is_pending(later) for later in asked[number + 1 :]] == [True] * (4 - number)
    assert table.is_idle()


def test_different_sessions_run_at_once(table: CoreHarness) -> None:
    asked = [table.eval(f"s{number}") for number in range(10)]
    assert table.running_evals(*asked) == asked


def test_an_eval_that_waits_is_told_its_position(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    for name in ("a", "b", "c"):
        table.open(name)
    first = table.eval("a")
    assert first not in table.replies
    positions = []
    for name in ("a", "a", "b", "c", "b"):
        asked = table.eval(name)
        assert asked not in table.replies  # a wait that is over in a moment is not worth a message
        table.wait(0.02)
        answer = table.replies[asked][0]
        assert (answer["status"], answer["eval-id"]) == (["queued"], table.session(name).eval_count)
        positions.append(answer["queue-position"])
    assert positions == [1, 2, 1, 2, 3]


def test_a_slow_session_holds_one_slot_however_much_it_queues(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=2)
    slow = [table.eval("slow") for _ in range(5)]
    quick = table.eval("quick")
    assert table.running_evals(*slow, quick) == [slow[0], quick]
    assert table.state.semaphore.in_use == 2
    table.finish(quick)
    assert table.running_evals(*slow, table.eval("quick")) == [slow[0], "r7"]


def test_a_slot_goes_straight_to_the_next(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    asked = [table.eval(name) for name in ("a", "b", "c")]
    for each in asked:
        assert table.running_evals(*asked) == [each]
        assert table.state.semaphore.in_use == 1
        table.finish(each)
    assert table.is_idle()


def test_agents_take_turns_at_the_slots(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    first = table.eval("s0", agent="busy")
    busy = [table.eval(f"busy{number}", agent="busy") for number in range(4)]
    calm = [table.eval(f"calm{number}", agent="calm") for number in range(2)]
    order = [first]
    for _ in range(6):
        table.finish(order[-1])
        order += table.running_evals(*busy, *calm)
    assert order == [first, busy[0], calm[0], busy[1], calm[1], busy[2], busy[3]]


def test_evals_of_one_agent_that_wait_are_bounded(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1, max_queued_evals=2)
    asked = [table.eval(agent="ada") for _ in range(3)]
    refused = table.final_reply(table.eval(agent="ada"))
    assert refused["status"] == ["done", "error", "concurrency-limit-reached"]
    assert refused["err"] == "Too many concurrent evals for agent ada of self (max-queued-evals = 2)"
    assert (refused["limit"], refused["limit-value"]) == ("max-queued-evals", 2)
    assert (refused["queue-position"], refused["retry-after-ms"]) == (2, 1000)
    assert table.is_pending(table.eval(agent="bob"))
    table.finish(asked[0])
    assert table.is_pending(table.eval(agent="ada"))


def test_connections_without_an_agent_are_told_apart(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_queued_evals=1)
    table.eval()
    assert table.is_pending(table.eval())
    assert not table.is_pending(table.eval())
    assert table.is_pending(table.eval(peer=b"p2"))


def test_evals_of_all_agents_that_wait_are_bounded(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_queued_total=2)
    for agent in ("ada", "bob", "eve"):
        table.eval(agent=agent)
    refused = table.final_reply(table.eval(agent="joe"))
    assert (refused["limit"], refused["limit-value"], refused["queue-position"]) == ("max-queued-total", 2, 2)
    assert table.is_pending(table.eval("other", agent="joe"))  # it need not wait

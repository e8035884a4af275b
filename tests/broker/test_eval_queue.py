"""The order of evals: one at a time in a session, first come first served, then fair slots."""

from __future__ import annotations

from collections.abc import Callable

from core_harness import CoreHarness


def test_a_session_runs_one_eval_at_a_time_in_order(harness: CoreHarness) -> None:
    asked = [harness.eval() for _ in range(5)]
    for number, each in enumerate(asked):
        assert harness.running_evals(*asked) == [each]
        assert harness.finish(each)["status"] == ["done"]
        assert [harness.is_pending(later) for later in asked[number + 1 :]] == [True] * (4 - number)
    assert harness.is_idle()


def test_different_sessions_run_at_once(harness: CoreHarness) -> None:
    asked = [harness.eval(f"s{number}") for number in range(10)]
    assert harness.running_evals(*asked) == asked


def test_an_eval_that_waits_is_told_its_position(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    for name in ("a", "b", "c"):
        harness.open(name)
    first = harness.eval("a")
    assert first not in harness.replies
    positions = []
    for name in ("a", "a", "b", "c", "b"):
        asked = harness.eval(name)
        assert asked not in harness.replies  # a wait that is over in a moment is not worth a message
        harness.wait(0.02)
        answer = harness.replies[asked][0]
        assert (answer["status"], answer["eval-id"]) == (["queued"], harness.session(name).eval_count)
        positions.append(answer["queue-position"])
    assert positions == [1, 2, 1, 2, 3]


def test_a_slow_session_holds_one_slot_however_much_it_queues(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=2)
    slow = [harness.eval("slow") for _ in range(5)]
    quick = harness.eval("quick")
    assert harness.running_evals(*slow, quick) == [slow[0], quick]
    assert harness.state.semaphore.in_use == 2
    harness.finish(quick)
    assert harness.running_evals(*slow, harness.eval("quick")) == [slow[0], "r7"]


def test_a_slot_goes_straight_to_the_next(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    asked = [harness.eval(name) for name in ("a", "b", "c")]
    for each in asked:
        assert harness.running_evals(*asked) == [each]
        assert harness.state.semaphore.in_use == 1
        harness.finish(each)
    assert harness.is_idle()


def test_agents_take_turns_at_the_slots(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    first = harness.eval("s0", agent="busy")
    busy = [harness.eval(f"busy{number}", agent="busy") for number in range(4)]
    calm = [harness.eval(f"calm{number}", agent="calm") for number in range(2)]
    order = [first]
    for _ in range(6):
        harness.finish(order[-1])
        order += harness.running_evals(*busy, *calm)
    assert order == [first, busy[0], calm[0], busy[1], calm[1], busy[2], busy[3]]


def test_evals_of_one_agent_that_wait_are_bounded(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1, max_queued_evals=2)
    asked = [harness.eval(agent="ada") for _ in range(3)]
    refused = harness.final_reply(harness.eval(agent="ada"))
    assert refused["status"] == ["done", "error", "concurrency-limit-reached"]
    assert refused["err"] == "Too many concurrent evals for agent ada of self (max-queued-evals = 2)"
    assert (refused["limit"], refused["limit-value"]) == ("max-queued-evals", 2)
    assert (refused["queue-position"], refused["retry-after-ms"]) == (2, 1000)
    assert harness.is_pending(harness.eval(agent="bob"))
    harness.finish(asked[0])
    assert harness.is_pending(harness.eval(agent="ada"))


def test_connections_without_an_agent_are_told_apart(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_queued_evals=1)
    harness.eval()
    assert harness.is_pending(harness.eval())
    assert not harness.is_pending(harness.eval())
    assert harness.is_pending(harness.eval(peer=b"p2"))


def test_evals_of_all_agents_that_wait_are_bounded(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_queued_total=2)
    for agent in ("ada", "bob", "eve"):
        harness.eval(agent=agent)
    refused = harness.final_reply(harness.eval(agent="joe"))
    assert (refused["limit"], refused["limit-value"], refused["queue-position"]) == ("max-queued-total", 2, 2)
    assert harness.is_pending(harness.eval("other", agent="joe"))  # it need not wait

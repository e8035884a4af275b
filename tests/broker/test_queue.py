"""Who runs when: one at a time in a session, first come first served, then a slot, then fair turns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker_kit import Table
from replbroker.core.gate import Gate


def test_a_session_runs_one_eval_at_a_time_in_order(table: Table) -> None:
    asked = [table.eval() for _ in range(5)]
    for number, each in enumerate(asked):
        assert table.running(*asked) == [each]
        assert table.finish(each)["status"] == ["done"]
        assert [table.pending(later) for later in asked[number + 1 :]] == [True] * (4 - number)
    assert table.quiet()


def test_different_sessions_run_at_once(table: Table) -> None:
    asked = [table.eval(f"s{number}") for number in range(10)]
    assert table.running(*asked) == asked


def test_an_eval_that_waits_is_told_its_position(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=1)
    for name in ("a", "b", "c"):
        table.open(name)
    first = table.eval("a")
    assert first not in table.answers
    positions = []
    for name in ("a", "a", "b", "c", "b"):
        asked = table.eval(name)
        assert asked not in table.answers  # a wait that is over in a moment is not worth a message
        table.wait(0.02)
        answer = table.answers[asked][0]
        assert (answer["status"], answer["eval-id"]) == (["queued"], table.session(name).eval_count)
        positions.append(answer["queue-position"])
    assert positions == [1, 2, 1, 2, 3]


def test_a_slow_session_holds_one_slot_however_much_it_queues(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=2)
    slow = [table.eval("slow") for _ in range(5)]
    quick = table.eval("quick")
    assert table.running(*slow, quick) == [slow[0], quick]
    assert table.state.gate.taken == 2
    table.finish(quick)
    assert table.running(*slow, table.eval("quick")) == [slow[0], "r7"]


def test_a_slot_goes_straight_to_the_next(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=1)
    asked = [table.eval(name) for name in ("a", "b", "c")]
    for each in asked:
        assert table.running(*asked) == [each]
        assert table.state.gate.taken == 1
        table.finish(each)
    assert table.quiet()


def test_agents_take_turns_at_the_slots(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=1)
    first = table.eval("s0", agent="busy")
    busy = [table.eval(f"busy{number}", agent="busy") for number in range(4)]
    calm = [table.eval(f"calm{number}", agent="calm") for number in range(2)]
    order = [first]
    for _ in range(6):
        table.finish(order[-1])
        order += table.running(*busy, *calm)
    assert order == [first, busy[0], calm[0], busy[1], calm[1], busy[2], busy[3]]


def test_evals_of_one_agent_that_wait_are_bounded(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=1, max_queued_evals=2)
    asked = [table.eval(agent="ada") for _ in range(3)]
    refused = table.end(table.eval(agent="ada"))
    assert refused["status"] == ["done", "error", "concurrency-limit-reached"]
    assert refused["err"] == "Too many concurrent evals: 2 wait already (max-queued-evals = 2)"
    assert (refused["limit"], refused["limit-value"]) == ("max-queued-evals", 2)
    assert (refused["queue-position"], refused["retry-after-ms"]) == (2, 1000)
    assert table.pending(table.eval(agent="bob"))
    table.finish(asked[0])
    assert table.pending(table.eval(agent="ada"))


def test_connections_without_an_agent_are_told_apart(new_table: Callable[..., Table]) -> None:
    table = new_table(max_queued_evals=1)
    table.eval()
    assert table.pending(table.eval())
    assert not table.pending(table.eval())
    assert table.pending(table.eval(peer=b"p2"))


def test_evals_of_all_agents_that_wait_are_bounded(new_table: Callable[..., Table]) -> None:
    table = new_table(max_queued_total=2)
    for agent in ("ada", "bob", "eve"):
        table.eval(agent=agent)
    refused = table.end(table.eval(agent="joe"))
    assert (refused["limit"], refused["limit-value"], refused["queue-position"]) == ("max-queued-total", 2, 2)
    assert table.pending(table.eval("other", agent="joe"))  # it need not wait


def test_the_gate_takes_no_more_than_its_slots() -> None:
    gate: Gate[str] = Gate(2)
    assert [gate.enter("a", item) for item in ("1", "2", "3")] == [True, True, False]
    assert (gate.taken, len(gate), gate.waiting_by_agent()) == (2, 1, {"a": 1})
    assert gate.release() == "3"
    assert (gate.taken, len(gate)) == (2, 0)
    assert (gate.release(), gate.release(), gate.taken) == (None, None, 0)


def test_who_leaves_the_gate_is_not_served() -> None:
    gate: Gate[str] = Gate(1)
    for item in ("0", "1", "2"):
        gate.enter("a", item)
    gate.enter("b", "3")
    gate.leave("a", "1")
    gate.leave("b", "3")
    assert (gate.release(), gate.release(), len(gate)) == ("2", None, 0)


@pytest.mark.parametrize(("agent", "item"), [("a", "9"), ("b", "1")])
def test_who_does_not_wait_cannot_leave(agent: str, item: str) -> None:
    gate: Gate[str] = Gate(1)
    gate.enter("a", "0")
    gate.enter("a", "1")
    with pytest.raises(ValueError):  # noqa: PT011
        gate.leave(agent, item)
    assert gate.release() == "1"


@pytest.mark.parametrize("seed", range(20))
def test_no_agent_that_waits_is_passed_over_twice_by_another(seed: int) -> None:
    """From the moment an agent has somebody waiting, each other agent is served once at most before it."""
    pick = random.Random(seed)
    gate: Gate[tuple[str, int]] = Gate(1)
    gate.enter("z", ("z", 0))
    since: dict[str, list[str]] = {}  # who was served since this agent began to wait, or was served itself
    for number in range(1, 500):
        if pick.random() < 0.6:
            agent = pick.choice("abcde")
            gate.enter(agent, (agent, number))
            since.setdefault(agent, [])
        elif (item := gate.release()) is None:
            gate.enter("z", ("z", number))
        else:
            served = since.pop(item[0])
            assert len(served) == len(set(served))
            for others in since.values():
                others.append(item[0])
            if item[0] in gate.waiting_by_agent():
                since[item[0]] = []
        assert gate.taken == 1

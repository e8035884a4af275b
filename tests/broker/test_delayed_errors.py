"""Delayed errors: sent one after the other, and never kept without limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.limits import MAX_DELAYED_REFUSALS

New = Callable[..., CoreHarness]


@pytest.fixture
def limited_core(new_harness: New) -> CoreHarness:
    """A harness at its rate limit of one request a minute."""
    harness = new_harness(rate_limit_per_min=1, audit=True)
    harness.request("ping")
    return harness


def test_refusals_of_one_connection_come_one_in_each_pause(limited_core: CoreHarness) -> None:
    asked = [limited_core.send("ping") for _ in range(5)]
    results = []
    for _ in range(5):
        limited_core.wait(0.1)
        results.append(sum(not limited_core.is_pending(each) for each in asked))
    assert results == [1, 2, 3, 4, 5]
    assert not limited_core.core.has_pending(b"p1")


def test_the_time_to_try_again_counts_from_the_answer(limited_core: CoreHarness) -> None:
    asked = limited_core.send("ping")
    limited_core.send("ping")
    limited_core.wait(0.1)
    first = limited_core.final_reply(asked)
    assert first["retry-after-ms"] == 60_001 - 100


def test_others_wait_for_nothing(limited_core: CoreHarness) -> None:
    for _ in range(50):
        limited_core.send("ping")
    other = limited_core.send("ping", b"p2")
    assert limited_core.final_reply(other)["status"] == ["done", "pong"]


def test_one_too_many_that_waits_ends_the_connection_with_a_last_word(limited_core: CoreHarness) -> None:
    asked = [limited_core.send("ping") for _ in range(MAX_DELAYED_REFUSALS)]
    assert limited_core.hung_up == []
    last = limited_core.final_reply(limited_core.send("ping"))
    assert last["status"] == ["done", "error", "rate-limited"]
    assert last["err"].endswith("; too many refused requests are waiting: the connection is closed")
    assert limited_core.hung_up == [b"p1"]
    limited_core.wait(60)
    assert all(limited_core.is_pending(each) for each in asked)  # the last word stands for them
    refused = [(each.outcome, each.repeated) for each in limited_core.audited[1:]]
    assert refused == [("rate-limited", MAX_DELAYED_REFUSALS), ("rate-limited", 1)]
    assert limited_core.state.counts["refused.rate-limited"] == MAX_DELAYED_REFUSALS + 1


def test_of_a_client_that_has_gone_none_is_left_and_all_are_counted(limited_core: CoreHarness) -> None:
    for _ in range(20):
        limited_core.send("ping")
    limited_core.disconnect()
    assert not limited_core.core.has_pending(b"p1")
    limited_core.wait(10)
    assert sum(each.repeated for each in limited_core.audited if each.outcome == "rate-limited") == 20
    assert limited_core.state.counts["refused.rate-limited"] == 20


def test_a_broker_that_ends_answers_what_waits(limited_core: CoreHarness) -> None:
    asked = [limited_core.send("ping") for _ in range(3)]
    limited_core.apply(limited_core.core.drain("the test", limited_core.now))
    assert {limited_core.final_reply(each)["status"][-1] for each in asked} == {"rate-limited"}
    assert limited_core.exits


def test_the_fifth_malformed_message_in_a_row_costs_a_pause_and_the_tenth_the_connection(harness: CoreHarness) -> None:
    for number in range(1, 11):
        harness.send_raw(b"x")
        assert len(harness.paused) == min(max(number - 4, 0), 5)
    assert {until for _, until in harness.paused} == {harness.now + 0.1}
    assert harness.hung_up == [b"p1"]

"""Bounds at their exact value, and deadlines that have passed or were cancelled: each kills a mutant of the core."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replbroker.core.limits.sliding_window import WINDOW_S, ByteBucket, SlidingWindow
from replwire.ext.verdicts import Allow, Block, RequireApproval


def test_a_byte_bucket_is_paid_off_by_fractions_of_a_second() -> None:
    bucket = ByteBucket()
    bucket.add(2000)
    assert bucket.wait_s(1000, 0.0) == 1.0
    assert bucket.wait_s(1000, 0.25) == 0.75
    assert bucket.wait_s(1000, 1.0) == 0.0


def test_a_request_counts_for_exactly_a_minute() -> None:
    window = SlidingWindow()
    assert window.try_acquire(1, 0.0) == 0
    assert window.try_acquire(1, WINDOW_S) == 0
    assert window.try_acquire_control(1, 0.0)
    assert not window.try_acquire_control(1, WINDOW_S - 0.001)
    assert window.try_acquire_control(1, WINDOW_S)


def test_a_refused_request_takes_the_place_of_the_oldest() -> None:
    window = SlidingWindow()
    for now in (0.0, 1.0):
        window.try_acquire(2, now)
    assert window.try_acquire(2, 2.0) == 59_001  # the oldest that counts is that of 1.0
    assert window.try_acquire(2, 61.0) == 0


@pytest.mark.parametrize(
    ("codes", "kept"),
    [
        (["aaaa", "bbbb", "cc"], ["aaaa", "bbbb", "cc"]),  # exactly ten bytes
        (["aaaa", "bbbb", "ccc"], ["bbbb", "ccc"]),
        (["éé", "éé", "éé"], ["éé", "éé"]),  # four bytes each
        (["a", "b", "c", "d"], ["b", "c", "d"]),  # three entries
    ],
)
def test_history_keeps_what_fits_and_no_less(
    new_harness: Callable[..., CoreHarness], codes: list[str], kept: list[str]
) -> None:
    harness = new_harness(max_history=3, history_bytes=10)
    harness.open()
    for code in codes:
        harness.finish(harness.eval(code=code))
    assert [item.code for item in harness.session().history] == kept


def test_finished_evals_are_forgotten_and_a_waiting_one_is_not(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_history=1)
    harness.open()
    for _ in range(3):
        harness.finish(harness.eval())
    running, waiting = harness.eval(), harness.eval()
    assert [task.eval_id for task in harness.session().evals] == [3, 4, 5]
    harness.finish(running)
    assert [task.eval_id for task in harness.session().evals] == [4, 5]
    harness.finish(waiting)


@pytest.fixture
def hooked(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    harness = new_harness(hooks=True, hook_time_ms=500, approval_time_ms=10_000)
    harness.open()
    return harness


def test_hooks_have_all_their_time(hooked: CoreHarness) -> None:
    request = hooked.eval()
    hooked.wait(0.49)
    assert hooked.is_pending(request)
    hooked.wait(0.02)
    assert "hook-blocked" in hooked.final_reply(request)["status"]


def test_the_time_of_hooks_is_over_with_their_verdict(hooked: CoreHarness) -> None:
    request = hooked.eval()
    hooked.answer_hook(Allow())
    hooked.wait(1)
    assert hooked.running_evals(request) == [request]
    hooked.finish(request)


def test_refusals_by_hooks_are_counted_by_their_word(hooked: CoreHarness) -> None:
    for verdict in (Block("no"), Block("no"), RequireApproval("Run it?", "because")):
        request = hooked.eval()
        hooked.answer_hook(verdict)
        answer = hooked.final_reply(request)
        assert (answer.get("hint") is None) == isinstance(verdict, Block)
    counts = hooked.request("stats")["stats"]["counts"]
    assert (counts["refused.hook-blocked"], counts["refused.approval-needed"]) == (2, 1)


def test_an_approval_counts_until_its_time_is_over_and_not_after(hooked: CoreHarness) -> None:
    for seconds, approved in ((9.9, {"guard/words"}), (10.1, set())):
        request = hooked.eval(code="x")
        hooked.answer_hook(RequireApproval("Run it?", "because"))
        approval = hooked.final_reply(request)["approval"]["id"]
        hooked.wait(seconds)
        again = hooked.eval(code="x", approval=approval)
        question = hooked.hook_requests[-1].question
        assert set(question.approved) == approved
        hooked.answer_hook(Allow())
        hooked.finish(again)


def test_a_session_waits_for_a_worker_as_long_as_a_start_may_take(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False, worker_start_ms=5000)
    request = harness.send("new-session", name="work")
    harness.wait(4.9)
    assert harness.is_pending(request)
    harness.wait(0.2)
    assert not harness.is_pending(request)

"""Interrupts: by session, by eval, by request, all at once; never a wrong one, and nothing to interrupt is no error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import FrameKind, Outcome


def test_the_running_eval_of_a_session_is_interrupted_and_the_queue_is_not(harness: CoreHarness) -> None:
    first, second = harness.eval(), harness.eval()
    answer = harness.request("interrupt", session="work")
    assert (answer["interrupted"], answer["interrupted-id"]) == (["work"], 1)
    assert [cancel["limit_ms"] for cancel in harness.cancels()] == [None]
    assert harness.is_pending(first)
    harness.finish(first, Outcome.INTERRUPTED, status=["done", "interrupted"])
    assert harness.request("jobs", session="work")["jobs"][0]["status"] == ["done", "interrupted"]
    harness.finish(second)


def test_an_interrupt_reaches_the_worker_past_a_full_queue_and_gate(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1, max_queued_evals=1)
    harness.eval()
    harness.eval()
    harness.request("interrupt", session="work")
    assert len(harness.cancels()) == 1


def test_nothing_to_interrupt_is_no_error(harness: CoreHarness) -> None:
    harness.open()
    for fields in ({"session": "work"}, {"session": "work", "all": True}, {"request_id": "r99"}):
        answer = harness.request("interrupt", **fields)
        assert (answer["status"], answer["interrupted"]) == (["done"], [])
        assert "interrupted-id" not in answer
    harness.finish(harness.eval())
    assert harness.request("interrupt", session="work", interrupt_id=1)["interrupted"] == []


def test_a_queued_eval_is_interrupted_by_its_number_and_never_runs(harness: CoreHarness) -> None:
    first, second, third = (harness.eval() for _ in range(3))
    answer = harness.request("interrupt", session="work", interrupt_id=2)
    assert (answer["interrupted"], answer["interrupted-id"]) == (["work"], 2)
    expected = {"id": second, "status": ["done", "interrupted"], "eval-id": 2, "epoch": 1, "state": "kept"}
    assert harness.final_reply(second) == expected
    assert harness.cancels() == []
    harness.finish(first)
    assert harness.running_evals(second, third) == [third]


def test_a_wrong_number_interrupts_nothing(harness: CoreHarness) -> None:
    harness.eval()
    for number in (0, 2, 10**30):
        assert harness.request("interrupt", session="work", interrupt_id=number)["interrupted"] == []
    assert harness.cancels() == []


def test_all_empties_the_queue_as_well(harness: CoreHarness) -> None:
    first, *queued = (harness.eval() for _ in range(4))
    answer = harness.request("interrupt", session="work", all=True)
    assert (answer["interrupted"], answer["interrupted-id"]) == (["work"], 1)
    assert [harness.final_reply(each)["status"] for each in queued] == [["done", "interrupted"]] * 3
    harness.finish(first, Outcome.INTERRUPTED)
    assert harness.is_idle()


def test_all_on_a_session_that_waits_for_a_slot_runs_none_of_its_evals(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    other = harness.eval("other")
    queued = [harness.eval() for _ in range(3)]
    answer = harness.request("interrupt", session="work", all=True)
    assert answer["interrupted-id"] == 3
    assert not any(harness.is_pending(each) for each in queued)
    harness.finish(other)
    assert harness.is_idle()


def test_an_eval_is_interrupted_by_the_id_of_its_request(harness: CoreHarness) -> None:
    work, other = harness.eval("work"), harness.eval("other")
    answer = harness.request("interrupt", request_id=other)
    assert (answer["interrupted"], answer["interrupted-id"]) == (["other"], 1)
    assert (harness.cancels("work"), len(harness.cancels("other"))) == ([], 1)
    assert harness.request("interrupt", request_id=work, peer=b"p2")["interrupted"] == []
    assert harness.cancels("work") == []


def test_a_throw_away_eval_is_interrupted_by_the_id_of_its_request(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    running, queued = harness.eval(None), harness.eval(None)
    harness.request("interrupt", request_id=queued)
    assert harness.final_reply(queued)["status"] == ["done", "interrupted"]
    assert len(harness.state.sessions) == 1
    worker = harness.worker_running(running)
    assert worker is not None
    harness.request("interrupt", request_id=running)
    assert len(worker.frames(FrameKind.CANCEL)) == 1
    harness.finish(running, Outcome.INTERRUPTED)
    assert len(harness.state.sessions) == 0
    assert harness.is_idle()


def test_an_eval_whose_worker_is_still_starting_ends_at_once(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False, max_concurrent_evals=1)
    first, second = harness.eval(), harness.eval()
    harness.request("interrupt", session="work")
    assert harness.final_reply(first)["status"] == ["done", "interrupted"]
    assert harness.state.semaphore.in_use == 1
    worker = harness.workers[1]
    worker.send_ready()
    worker.send_assigned()
    assert [body["id"] for _, body in worker.frames(FrameKind.REQUEST)] == [second]
    harness.finish(second)
    assert harness.is_idle()


def test_code_that_ignores_an_interrupt_still_has_its_time_limit(harness: CoreHarness) -> None:
    asked = harness.eval(timeout_ms=5000)
    harness.request("interrupt", session="work")
    harness.request("interrupt", session="work")
    harness.wait(5)
    assert [cancel["limit_ms"] for cancel in harness.cancels()] == [None, None, 5000]
    harness.wait(2)
    assert harness.final_reply(asked)["state"] == "lost"


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ERROR])
def test_code_may_end_before_its_interrupt_arrives(harness: CoreHarness, outcome: int) -> None:
    asked = harness.eval()
    harness.request("interrupt", session="work")
    harness.finish(asked, outcome)
    assert harness.is_idle()
    harness.finish(harness.eval())

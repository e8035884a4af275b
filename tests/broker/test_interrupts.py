"""Interrupts: by session, by eval, by request, all at once; never a wrong one, and nothing to interrupt is no error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import FrameKind, Outcome


def test_the_running_eval_of_a_session_is_interrupted_and_the_queue_is_not(table: CoreHarness) -> None:
    first, second = table.eval(), table.eval()
    answer = table.request("interrupt", session="work")
    assert (answer["interrupted"], answer["interrupted-id"]) == (["work"], 1)
    assert [cancel["limit_ms"] for cancel in table.cancels()] == [None]
    assert table.is_pending(first)
    table.finish(first, Outcome.INTERRUPTED, status=["done", "interrupted"])
    assert table.request("jobs", session="work")["jobs"][0]["status"] == ["done", "interrupted"]
    table.finish(second)


def test_an_interrupt_reaches_the_worker_past_a_full_queue_and_gate(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1, max_queued_evals=1)
    table.eval()
    table.eval()
    table.request("interrupt", session="work")
    assert len(table.cancels()) == 1


def test_nothing_to_interrupt_is_no_error(table: CoreHarness) -> None:
    table.open()
    for fields in ({"session": "work"}, {"session": "work", "all": True}, {"request_id": "r99"}):
        answer = table.request("interrupt", **fields)
        assert (answer["status"], answer["interrupted"]) == (["done"], [])
        assert "interrupted-id" not in answer
    table.finish(table.eval())
    assert table.request("interrupt", session="work", interrupt_id=1)["interrupted"] == []


def test_a_queued_eval_is_interrupted_by_its_number_and_never_runs(table: CoreHarness) -> None:
    first, second, third = (table.eval() for _ in range(3))
    answer = table.request("interrupt", session="work", interrupt_id=2)
    assert (answer["interrupted"], answer["interrupted-id"]) == (["work"], 2)
    expected = {"id": second, "status": ["done", "interrupted"], "eval-id": 2, "epoch": 1, "state": "kept"}
    assert table.final_reply(second) == expected
    assert table.cancels() == []
    table.finish(first)
    assert table.running_evals(second, third) == [third]


def test_a_wrong_number_interrupts_nothing(table: CoreHarness) -> None:
    table.eval()
    for number in (0, 2, 10**30):
        assert table.request("interrupt", session="work", interrupt_id=number)["interrupted"] == []
    assert table.cancels() == []


def test_all_empties_the_queue_as_well(table: CoreHarness) -> None:
    first, *queued = (table.eval() for _ in range(4))
    answer = table.request("interrupt", session="work", all=True)
    assert (answer["interrupted"], answer["interrupted-id"]) == (["work"], 1)
    assert [table.final_reply(each)["status"] for each in queued] == [["done", "interrupted"]] * 3
    table.finish(first, Outcome.INTERRUPTED)
    assert table.is_idle()


def test_all_on_a_session_that_waits_for_a_slot_runs_none_of_its_evals(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    other = table.eval("other")
    queued = [table.eval() for _ in range(3)]
    answer = table.request("interrupt", session="work", all=True)
    assert answer["interrupted-id"] == 3
    assert not any(table.is_pending(each) for each in queued)
    table.finish(other)
    assert table.is_idle()


def test_an_eval_is_interrupted_by_the_id_of_its_request(table: CoreHarness) -> None:
    work, other = table.eval("work"), table.eval("other")
    answer = table.request("interrupt", request_id=other)
    assert (answer["interrupted"], answer["interrupted-id"]) == (["other"], 1)
    assert (table.cancels("work"), len(table.cancels("other"))) == ([], 1)
    assert table.request("interrupt", request_id=work, peer=b"p2")["interrupted"] == []
    assert table.cancels("work") == []


def test_a_throw_away_eval_is_interrupted_by_the_id_of_its_request(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    running, queued = table.eval(None), table.eval(None)
    table.request("interrupt", request_id=queued)
    assert table.final_reply(queued)["status"] == ["done", "interrupted"]
    assert len(table.state.sessions) == 1
    worker = table.worker_running(running)
    assert worker is not None
    table.request("interrupt", request_id=running)
    assert len(worker.frames(FrameKind.CANCEL)) == 1
    table.finish(running, Outcome.INTERRUPTED)
    assert len(table.state.sessions) == 0
    assert table.is_idle()


def test_an_eval_whose_worker_is_still_starting_ends_at_once(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False, max_concurrent_evals=1)
    first, second = table.eval(), table.eval()
    table.request("interrupt", session="work")
    assert table.final_reply(first)["status"] == ["done", "interrupted"]
    assert table.state.semaphore.in_use == 1
    worker = table.workers[1]
    worker.send_ready()
    worker.send_assigned()
    assert [body["id"] for _, body in worker.frames(FrameKind.REQUEST)] == [second]
    table.finish(second)
    assert table.is_idle()


def test_code_that_ignores_an_interrupt_still_has_its_time_limit(table: CoreHarness) -> None:
    asked = table.eval(timeout_ms=5000)
    table.request("interrupt", session="work")
    table.request("interrupt", session="work")
    table.wait(5)
    assert [cancel["limit_ms"] for cancel in table.cancels()] == [None, None, 5000]
    table.wait(2)
    assert table.final_reply(asked)["state"] == "lost"


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.ERROR])
def test_code_may_end_before_its_interrupt_arrives(table: CoreHarness, outcome: int) -> None:
    asked = table.eval()
    table.request("interrupt", session="work")
    table.finish(asked, outcome)
    assert table.is_idle()
    table.finish(table.eval())

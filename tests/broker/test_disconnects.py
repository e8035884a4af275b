"""A connection ends: what ran in a session goes on, what ran in none has nobody left to read it."""

from __future__ import annotations

from collections.abc import Callable

from core_harness import CoreHarness
from replbroker.core.limits.quotas import QUEUE
from replwire.link import FrameKind, Outcome


def _start_busy_session(new_table: Callable[..., CoreHarness], **limits: int) -> tuple[CoreHarness, str]:
    """One slot, and an eval of another client that has it."""
    table = new_table(max_concurrent_evals=1, **limits)
    return table, table.eval("held", peer=b"p9")


def test_a_queued_eval_without_a_session_goes_with_its_client(new_table: Callable[..., CoreHarness]) -> None:
    table, held = _start_busy_session(new_table)
    left = [table.eval(None), table.eval(None)]
    stays = table.eval(None, peer=b"p2")
    table.disconnect()
    assert table.state.quotas.total(QUEUE) == 1
    assert len(table.state.sessions) == 2
    table.finish(held)
    assert table.running_evals(*left, stays) == [stays]
    table.finish(stays)
    assert table.is_idle()


def test_one_that_runs_is_interrupted_and_killed_if_it_does_not_obey(table: CoreHarness) -> None:
    asked = table.eval(None)
    worker = table.worker_running(asked)
    assert worker is not None
    table.disconnect()
    assert [body["limit_ms"] for _, body in worker.frames(FrameKind.CANCEL)] == [None]
    table.wait(1.999)
    assert table.killed == []
    table.wait(0.001)
    assert table.killed == [worker.number]
    assert table.is_idle()
    assert len(table.state.sessions) == 0


def test_one_that_obeys_ends_its_session(table: CoreHarness) -> None:
    asked = table.eval(None)
    worker = table.worker_running(asked)
    assert worker is not None
    table.disconnect()
    worker.reply(asked, Outcome.INTERRUPTED)
    assert table.is_idle()
    assert len(table.state.sessions) == 0
    table.wait(10)
    assert table.killed == [worker.number]


def test_one_that_has_its_slot_and_no_worker_yet_never_runs(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    asked = table.eval(None)
    table.disconnect()
    for worker in list(table.workers.values()):
        worker.send_ready()
    assert table.running_evals(asked) == []
    assert table.is_idle()
    assert len(table.state.sessions) == 0


def test_what_was_asked_of_a_session_goes_on(new_table: Callable[..., CoreHarness]) -> None:
    table, held = _start_busy_session(new_table)
    queued = table.eval("mine")
    table.disconnect()
    table.finish(held)
    assert table.running_evals(queued) == [queued]
    assert table.cancels("mine") == []


def test_one_whose_wait_is_over_can_be_read_and_goes_on(table: CoreHarness) -> None:
    asked = table.eval(None, wait_ms=1000)
    table.wait(1)
    told = table.final_reply(asked)
    assert told["status"] == ["done", "running"]
    table.disconnect()
    assert table.cancels(told["session"]) == []
    assert table.is_pending(table.send("read", peer=b"p2", session=told["session"], eval_id=1, wait_ms=5000))


def test_one_with_a_key_goes_on_for_whoever_repeats_it(table: CoreHarness) -> None:
    asked = table.eval(None, agent="ada", idempotency_key="k")
    worker = table.worker_running(asked)
    assert worker is not None
    table.disconnect()
    assert worker.frames(FrameKind.CANCEL) == []
    again = table.eval(None, agent="ada", idempotency_key="k", peer=b"p2")
    assert worker.op_of(again) == "read"

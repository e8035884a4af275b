"""A connection ends: what ran in a session goes on, what ran in none has nobody left to read it."""

from __future__ import annotations

from collections.abc import Callable

from broker_kit import Table
from replbroker.core.quotas import QUEUE
from replwire.link import Kind, Outcome


def _busy(new_table: Callable[..., Table], **limits: int) -> tuple[Table, str]:
    """One slot, and an eval of another client that has it."""
    table = new_table(max_concurrent_evals=1, **limits)
    return table, table.eval("held", peer=b"p9")


def test_a_queued_eval_without_a_session_goes_with_its_client(new_table: Callable[..., Table]) -> None:
    table, held = _busy(new_table)
    left = [table.eval(None), table.eval(None)]
    stays = table.eval(None, peer=b"p2")
    table.leaves()
    assert table.state.quotas.total(QUEUE) == 1
    assert len(table.state.sessions) == 2
    table.finish(held)
    assert table.running(*left, stays) == [stays]
    table.finish(stays)
    assert table.quiet()


def test_one_that_runs_is_interrupted_and_killed_if_it_does_not_obey(table: Table) -> None:
    asked = table.eval(None)
    worker = table.runner(asked)
    assert worker is not None
    table.leaves()
    assert [body["limit_ms"] for _, body in worker.heard(Kind.CANCEL)] == [None]
    table.wait(1.999)
    assert table.killed == []
    table.wait(0.001)
    assert table.killed == [worker.number]
    assert table.quiet()
    assert len(table.state.sessions) == 0


def test_one_that_obeys_ends_its_session(table: Table) -> None:
    asked = table.eval(None)
    worker = table.runner(asked)
    assert worker is not None
    table.leaves()
    worker.answers(asked, Outcome.INTERRUPTED)
    assert table.quiet()
    assert len(table.state.sessions) == 0
    table.wait(10)
    assert table.killed == [worker.number]


def test_one_that_has_its_slot_and_no_worker_yet_never_runs(new_table: Callable[..., Table]) -> None:
    table = new_table(auto=False)
    asked = table.eval(None)
    table.leaves()
    for worker in list(table.workers.values()):
        worker.ready()
    assert table.running(asked) == []
    assert table.quiet()
    assert len(table.state.sessions) == 0


def test_what_was_asked_of_a_session_goes_on(new_table: Callable[..., Table]) -> None:
    table, held = _busy(new_table)
    queued = table.eval("mine")
    table.leaves()
    table.finish(held)
    assert table.running(queued) == [queued]
    assert table.cancels("mine") == []


def test_one_whose_wait_is_over_can_be_read_and_goes_on(table: Table) -> None:
    asked = table.eval(None, wait_ms=1000)
    table.wait(1)
    told = table.end(asked)
    assert told["status"] == ["done", "running"]
    table.leaves()
    assert table.cancels(told["session"]) == []
    assert table.pending(table.ask("read", peer=b"p2", session=told["session"], eval_id=1, wait_ms=5000))


def test_one_with_a_key_goes_on_for_whoever_repeats_it(table: Table) -> None:
    asked = table.eval(None, agent="ada", idempotency_key="k")
    worker = table.runner(asked)
    assert worker is not None
    table.leaves()
    assert worker.heard(Kind.CANCEL) == []
    again = table.eval(None, agent="ada", idempotency_key="k", peer=b"p2")
    assert worker.op(again) == "read"

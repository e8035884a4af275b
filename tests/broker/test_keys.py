"""Idempotency keys: a repeat gets the first answer and never runs the code twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_kit import Table
from replbroker.core.quotas import QUEUE
from replwire.link import Kind


def evals(table: Table) -> int:
    """Evals that the session's worker was given."""
    return sum(body["op"] == "eval" for _, body in table.worker().heard(Kind.ASK))


def test_a_repeat_of_an_eval_that_ended_reads_its_answer(table: Table) -> None:
    table.finish(table.eval(idempotency_key="k", agent="ada"))
    again = table.eval(idempotency_key="k", agent="ada", peer=b"p2")
    told = table.worker().heard(Kind.ASK)[-1][1]
    assert (told["op"], told["id"], told["eval-id"], told["offset"]) == ("read", again, 1, 0)
    assert evals(table) == 1
    table.worker().answers(again, value="42")
    assert table.end(again)["value"] == "42"


@pytest.mark.parametrize(("wait", "sent"), [({}, 3_600_000), ({"wait_ms": 70}, 70), ({"wait_ms": 10**40}, 3_600_000)])
def test_a_repeat_of_an_eval_that_runs_waits_for_it(table: Table, wait: dict[str, int], sent: int) -> None:
    table.eval(idempotency_key="k")
    table.eval(idempotency_key="k", **wait)
    assert table.worker().heard(Kind.ASK)[-1][1]["wait-ms"] == sent
    assert evals(table) == 1


def test_a_repeat_of_an_eval_that_is_queued_waits_for_it(table: Table) -> None:
    first = table.eval()
    second = table.eval(idempotency_key="k")
    again = table.eval(idempotency_key="k")
    assert table.state.quotas.total(QUEUE) == 1
    table.finish(first)
    table.worker().answers(again)
    table.finish(second)
    assert evals(table) == 2
    assert table.quiet()


@pytest.mark.parametrize("other", [{"code": "2"}, {"session": "other"}])
def test_a_key_that_was_used_for_something_else_is_refused(table: Table, other: dict[str, str]) -> None:
    table.finish(table.eval(idempotency_key="k"))
    answer = table.end(table.eval(**({"idempotency_key": "k"} | other)))
    assert answer["status"] == ["done", "error", "idempotency-conflict"]
    assert answer["err"] == "idempotency-key k was used for other code"
    assert len(table.state.sessions) == 1


def test_keys_of_different_agents_never_meet(table: Table) -> None:
    table.finish(table.eval(idempotency_key="k", agent="ada"))
    table.finish(table.eval(idempotency_key="k", agent="bob"))
    table.finish(table.eval(idempotency_key="k"))
    table.finish(table.eval(idempotency_key="k", peer=b"p2"))
    assert evals(table) == 4


def test_a_key_does_not_outlive_its_session_and_still_does_not_run_twice(table: Table) -> None:
    table.eval(idempotency_key="k")
    table.said("close", session="work")
    table.open()
    answer = table.end(table.eval(idempotency_key="k"))
    assert answer["status"] == ["done", "error", "eval-not-found"]
    assert answer["err"] == "the key's eval ended (done interrupted session-closed) and its session is gone"
    assert evals(table) == 0


def test_an_eval_that_was_refused_leaves_no_key(new_table: Callable[..., Table]) -> None:
    table = new_table(max_queued_evals=0)
    running = table.eval()
    assert table.end(table.eval(idempotency_key="k"))["limit"] == "max-queued-evals"
    table.finish(running)
    table.finish(table.eval(idempotency_key="k"))


def test_the_oldest_key_goes_first(new_table: Callable[..., Table]) -> None:
    table = new_table(max_idempotency_keys=2)
    for key in ("a", "b", "c", "b", "a"):
        asked = table.eval(idempotency_key=key)
        table.worker().answers(asked)
        assert len(table.state.keys) <= 2
    assert evals(table) == 4  # "b" was remembered, "a" was not


def test_no_keys_may_be_kept(new_table: Callable[..., Table]) -> None:
    table = new_table(max_idempotency_keys=0)
    table.finish(table.eval(idempotency_key="k"))
    table.finish(table.eval(idempotency_key="k"))
    assert len(table.state.keys) == 0

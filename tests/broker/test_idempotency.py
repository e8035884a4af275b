"""Idempotency keys: a repeat gets the first answer and never runs the code twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replbroker.core.limits.quotas import QUEUE
from replwire.link import FrameKind


def evals(table: CoreHarness) -> int:
    """Evals that the session's worker was given."""
    return sum(body["op"] == "eval" for _, body in table.worker().frames(FrameKind.REQUEST))


def test_a_repeat_of_an_eval_that_ended_reads_its_answer(table: CoreHarness) -> None:
    table.finish(table.eval(idempotency_key="k", agent="ada"))
    again = table.eval(idempotency_key="k", agent="ada", peer=b"p2")
    told = table.worker().frames(FrameKind.REQUEST)[-1][1]
    assert (told["op"], told["id"], told["eval-id"], told["offset"]) == ("read", again, 1, 0)
    assert evals(table) == 1
    table.worker().reply(again, value="42")
    assert table.final_reply(again)["value"] == "42"


@pytest.mark.parametrize(("wait", "sent"), [({}, 3_600_000), ({"wait_ms": 70}, 70), ({"wait_ms": 10**40}, 3_600_000)])
def test_a_repeat_of_an_eval_that_runs_waits_for_it(table: CoreHarness, wait: dict[str, int], sent: int) -> None:
    table.eval(idempotency_key="k")
    table.eval(idempotency_key="k", **wait)
    assert table.worker().frames(FrameKind.REQUEST)[-1][1]["wait-ms"] == sent
    assert evals(table) == 1


def test_a_repeat_of_an_eval_that_is_queued_waits_for_it(table: CoreHarness) -> None:
    first = table.eval()
    second = table.eval(idempotency_key="k")
    again = table.eval(idempotency_key="k")
    assert table.state.quotas.total(QUEUE) == 1
    table.finish(first)
    table.worker().reply(again)
    table.finish(second)
    assert evals(table) == 2
    assert table.is_idle()


@pytest.mark.parametrize("other", [{"code": "2"}, {"session": "other"}])
def test_a_key_that_was_used_for_something_else_is_refused(table: CoreHarness, other: dict[str, str]) -> None:
    table.finish(table.eval(idempotency_key="k"))
    answer = table.final_reply(table.eval(**({"idempotency_key": "k"} | other)))
    assert answer["status"] == ["done", "error", "idempotency-conflict"]
    assert answer["err"] == "idempotency-key k was used for other code"
    assert len(table.state.sessions) == 1


def test_keys_of_different_agents_never_meet(table: CoreHarness) -> None:
    table.finish(table.eval(idempotency_key="k", agent="ada"))
    table.finish(table.eval(idempotency_key="k", agent="bob"))
    table.finish(table.eval(idempotency_key="k"))
    table.finish(table.eval(idempotency_key="k", peer=b"p2"))
    assert evals(table) == 4


def test_a_key_does_not_outlive_its_session_and_still_does_not_run_twice(table: CoreHarness) -> None:
    table.eval(idempotency_key="k")
    table.request("close", session="work")
    table.open()
    answer = table.final_reply(table.eval(idempotency_key="k"))
    assert answer["status"] == ["done", "error", "eval-not-found"]
    assert answer["err"] == "the key's eval ended (done interrupted session-closed) and its session is gone"
    assert evals(table) == 0


def test_an_eval_that_was_refused_leaves_no_key(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_queued_evals=0)
    running = table.eval()
    assert table.final_reply(table.eval(idempotency_key="k"))["limit"] == "max-queued-evals"
    table.finish(running)
    table.finish(table.eval(idempotency_key="k"))


def test_the_oldest_key_goes_first(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_idempotency_keys=2)
    for key in ("a", "b", "c", "b", "a"):
        asked = table.eval(idempotency_key=key)
        table.worker().reply(asked)
        assert len(table.state.idempotency) <= 2
    assert evals(table) == 4  # "b" was remembered, "a" was not


def test_no_keys_may_be_kept(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_idempotency_keys=0)
    table.finish(table.eval(idempotency_key="k"))
    table.finish(table.eval(idempotency_key="k"))
    assert len(table.state.idempotency) == 0

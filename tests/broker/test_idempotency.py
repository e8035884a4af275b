"""Idempotency keys: a repeat gets the first answer and never runs the code twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replbroker.core.limits.quotas import QUEUE
from replwire.link import FrameKind


def evals(harness: CoreHarness) -> int:
    """Count the evals that the session's worker got."""
    return sum(body["op"] == "eval" for _, body in harness.worker().frames(FrameKind.REQUEST))


def test_a_repeat_of_an_eval_that_ended_reads_its_answer(harness: CoreHarness) -> None:
    harness.finish(harness.eval(idempotency_key="k", agent="ada"))
    again = harness.eval(idempotency_key="k", agent="ada", peer=b"p2")
    result = harness.worker().frames(FrameKind.REQUEST)[-1][1]
    assert (result["op"], result["id"], result["eval-id"], result["offset"]) == ("read", again, 1, 0)
    assert evals(harness) == 1
    harness.worker().reply(again, value="42")
    assert harness.final_reply(again)["value"] == "42"


@pytest.mark.parametrize(("wait", "sent"), [({}, 3_600_000), ({"wait_ms": 70}, 70), ({"wait_ms": 10**40}, 3_600_000)])
def test_a_repeat_of_an_eval_that_runs_waits_for_it(harness: CoreHarness, wait: dict[str, int], sent: int) -> None:
    harness.eval(idempotency_key="k")
    harness.eval(idempotency_key="k", **wait)
    assert harness.worker().frames(FrameKind.REQUEST)[-1][1]["wait-ms"] == sent
    assert evals(harness) == 1


def test_a_repeat_of_an_eval_that_is_queued_waits_for_it(harness: CoreHarness) -> None:
    first = harness.eval()
    second = harness.eval(idempotency_key="k")
    again = harness.eval(idempotency_key="k")
    assert harness.state.quotas.total(QUEUE) == 1
    harness.finish(first)
    harness.worker().reply(again)
    harness.finish(second)
    assert evals(harness) == 2
    assert harness.is_idle()


@pytest.mark.parametrize("other", [{"code": "2"}, {"session": "other"}])
def test_a_key_that_was_used_for_something_else_is_refused(harness: CoreHarness, other: dict[str, str]) -> None:
    harness.finish(harness.eval(idempotency_key="k"))
    answer = harness.final_reply(harness.eval(**({"idempotency_key": "k"} | other)))
    assert answer["status"] == ["done", "error", "idempotency-conflict"]
    assert answer["err"] == "idempotency-key k was used for other code"
    assert len(harness.state.sessions) == 1


def test_keys_of_different_agents_never_meet(harness: CoreHarness) -> None:
    harness.finish(harness.eval(idempotency_key="k", agent="ada"))
    harness.finish(harness.eval(idempotency_key="k", agent="bob"))
    harness.finish(harness.eval(idempotency_key="k"))
    assert evals(harness) == 3


def test_a_client_may_ask_again_over_another_connection(harness: CoreHarness) -> None:
    harness.finish(harness.eval(idempotency_key="k"))
    again = harness.eval(idempotency_key="k", peer=b"p2")
    assert (evals(harness), harness.worker().op_of(again)) == (1, "read")


def test_a_key_does_not_outlive_its_session_and_still_does_not_run_twice(harness: CoreHarness) -> None:
    harness.eval(idempotency_key="k")
    harness.request("close", session="work")
    harness.open()
    answer = harness.final_reply(harness.eval(idempotency_key="k"))
    assert answer["status"] == ["done", "error", "eval-not-found"]
    assert answer["err"] == "the key's eval ended (done interrupted session-closed) and its session was closed"
    assert evals(harness) == 0


def test_an_eval_that_was_refused_leaves_no_key(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_queued_evals=0)
    running = harness.eval()
    assert harness.final_reply(harness.eval(idempotency_key="k"))["limit"] == "max-queued-evals"
    harness.finish(running)
    harness.finish(harness.eval(idempotency_key="k"))


def test_the_oldest_key_goes_first(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_idempotency_keys=2)
    for key in ("a", "b", "c", "b", "a"):
        asked = harness.eval(idempotency_key=key)
        harness.worker().reply(asked)
        assert len(harness.state.idempotency) <= 2
    assert evals(harness) == 4  # "b" was remembered, "a" was not


def test_no_keys_may_be_kept(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_idempotency_keys=0)
    harness.finish(harness.eval(idempotency_key="k"))
    harness.finish(harness.eval(idempotency_key="k"))
    assert len(harness.state.idempotency) == 0

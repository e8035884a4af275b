"""Disconnects: evals in sessions go on, evals in ephemeral sessions end."""

from __future__ import annotations

from collections.abc import Callable

from core_harness import CoreHarness
from replbroker.core.limits.quotas import QUEUE
from replwire.link import FrameKind, Outcome


def _start_busy_session(new_harness: Callable[..., CoreHarness], **limits: int) -> tuple[CoreHarness, str]:
    """Start an eval of another client in the only slot."""
    harness = new_harness(max_concurrent_evals=1, **limits)
    return harness, harness.eval("held", peer=b"p9")


def test_a_queued_eval_without_a_session_goes_with_its_client(new_harness: Callable[..., CoreHarness]) -> None:
    harness, held = _start_busy_session(new_harness)
    left = [harness.eval(None), harness.eval(None)]
    stays = harness.eval(None, peer=b"p2")
    harness.disconnect()
    assert harness.state.quotas.total(QUEUE) == 1
    assert len(harness.state.sessions) == 2
    harness.finish(held)
    assert harness.running_evals(*left, stays) == [stays]
    harness.finish(stays)
    assert harness.is_idle()


def test_one_that_runs_is_interrupted_and_killed_if_it_does_not_obey(harness: CoreHarness) -> None:
    asked = harness.eval(None)
    worker = harness.worker_running(asked)
    assert worker is not None
    harness.disconnect()
    assert [body["limit_ms"] for _, body in worker.frames(FrameKind.CANCEL)] == [None]
    harness.wait(1.999)
    assert harness.killed == []
    harness.wait(0.001)
    assert harness.killed == [worker.number]
    assert harness.is_idle()
    assert len(harness.state.sessions) == 0


def test_one_that_obeys_ends_its_session(harness: CoreHarness) -> None:
    asked = harness.eval(None)
    worker = harness.worker_running(asked)
    assert worker is not None
    harness.disconnect()
    worker.reply(asked, Outcome.INTERRUPTED)
    assert harness.is_idle()
    assert len(harness.state.sessions) == 0
    harness.wait(10)
    assert harness.killed == [worker.number]


def test_one_that_has_its_slot_and_no_worker_yet_never_runs(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    asked = harness.eval(None)
    harness.disconnect()
    for worker in list(harness.workers.values()):
        worker.send_ready()
    assert harness.running_evals(asked) == []
    assert harness.is_idle()
    assert len(harness.state.sessions) == 0


def test_what_was_asked_of_a_session_goes_on(new_harness: Callable[..., CoreHarness]) -> None:
    harness, held = _start_busy_session(new_harness)
    queued = harness.eval("mine")
    harness.disconnect()
    harness.finish(held)
    assert harness.running_evals(queued) == [queued]
    assert harness.cancels("mine") == []


def test_one_whose_wait_is_over_can_be_read_and_goes_on(harness: CoreHarness) -> None:
    asked = harness.eval(None, wait_ms=1000)
    harness.wait(1)
    reply = harness.final_reply(asked)
    assert reply["status"] == ["done", "running"]
    harness.disconnect()
    assert harness.cancels(reply["session"]) == []
    assert harness.is_pending(harness.send("read", peer=b"p2", session=reply["session"], eval_id=1, wait_ms=5000))


def test_one_with_a_key_goes_on_for_whoever_repeats_it(harness: CoreHarness) -> None:
    asked = harness.eval(None, agent="ada", idempotency_key="k")
    worker = harness.worker_running(asked)
    assert worker is not None
    harness.disconnect()
    assert worker.frames(FrameKind.CANCEL) == []
    again = harness.eval(None, agent="ada", idempotency_key="k", peer=b"p2")
    assert worker.op_of(again) == "read"

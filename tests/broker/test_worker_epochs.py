"""Frames of workers count only from the session's worker, of this epoch, on an open route."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from fake_worker import FakeWorker
from replwire.link import HEADER_BYTES, FrameKind, Outcome

DONE = {"status": ["done"]}


@pytest.fixture
def crowd(harness: CoreHarness) -> tuple[CoreHarness, str, FakeWorker]:
    """Return a harness with two sessions, and an eval that runs in epoch 2 of one of them."""
    harness.open("other")
    harness.open()
    harness.request("reset", session="work")
    asked = harness.eval()
    return harness, asked, harness.worker()


def frame(worker: FakeWorker, asked: str, **other: int) -> dict[str, int]:
    """Return the header of a correct reply, with one field changed."""
    header = worker.header_of(asked)
    return {"outcome": Outcome.OK, "epoch": header.epoch, "eval": header.eval, "route": header.route} | other


def test_the_right_frame_ends_the_eval(crowd: tuple[CoreHarness, str, FakeWorker]) -> None:
    harness, asked, worker = crowd
    worker.send(FrameKind.REPLY, DONE | {"id": asked}, **frame(worker, asked))
    assert harness.final_reply(asked)["status"] == ["done"]


@pytest.mark.parametrize("kind", [FrameKind.REPLY, FrameKind.OUTPUT])
@pytest.mark.parametrize("other", [{"epoch": 1}, {"epoch": 3}, {"route": 0}, {"route": 10**18}])
def test_a_frame_of_another_epoch_or_route_is_dropped(
    crowd: tuple[CoreHarness, str, FakeWorker], kind: int, other: dict[str, int]
) -> None:
    harness, asked, worker = crowd
    before = len(harness.received)
    worker.send(kind, DONE, **frame(worker, asked, **other))
    assert len(harness.received) == before
    harness.finish(asked)


def test_a_frame_of_another_sessions_worker_is_dropped(crowd: tuple[CoreHarness, str, FakeWorker]) -> None:
    harness, asked, worker = crowd
    before = len(harness.received)
    harness.worker("other").send(FrameKind.REPLY, DONE, **frame(worker, asked))
    assert len(harness.received) == before
    harness.finish(asked)


def test_a_frame_of_a_worker_that_was_killed_is_dropped(harness: CoreHarness) -> None:
    asked = harness.eval()
    old = harness.worker()
    harness.request("reset", session="work")
    harness.finish(harness.eval())
    before = (len(harness.received), harness.session().state)
    for kind in FrameKind:
        old.send(kind, DONE, **frame(old, asked))
    assert (len(harness.received), harness.session().state) == before


def test_an_answer_that_comes_twice_counts_once(crowd: tuple[CoreHarness, str, FakeWorker]) -> None:
    harness, asked, worker = crowd
    queued = harness.eval()
    worker.send(FrameKind.REPLY, DONE | {"id": asked}, **frame(worker, asked))
    worker.send(FrameKind.REPLY, DONE | {"id": asked}, **frame(worker, asked))
    harness.final_reply(asked)
    assert harness.running_evals(queued) == [queued]
    assert harness.state.semaphore.in_use == 1


def test_an_answer_to_an_eval_that_was_not_sent_yet_is_dropped(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    asked = harness.eval()
    worker = harness.workers[1]
    worker.send_ready()
    route = next(iter(harness.state.routes))
    worker.send(FrameKind.REPLY, DONE, outcome=Outcome.OK, epoch=1, route=route)
    assert harness.is_pending(asked)
    worker.send_assigned()
    harness.finish(asked)


def test_a_session_is_assigned_once_and_in_its_epoch(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    opening = harness.send("new-session", name="work")
    worker = harness.workers[1]
    worker.send_ready()
    worker.send(FrameKind.ASSIGNED, {"error": None}, epoch=7)
    assert harness.is_pending(opening)
    worker.send(FrameKind.ASSIGNED, {"error": None}, epoch=1)
    worker.send(FrameKind.ASSIGNED, {"error": "late"}, epoch=1)
    assert harness.final_reply(opening)["status"] == ["done"]
    assert harness.session().state == "idle"


def test_ready_twice_makes_no_second_worker(harness: CoreHarness) -> None:
    harness.open()
    harness.worker().send_ready()
    assert harness.request("stats")["stats"]["workers"] == {"starting": 0, "warm": 0, "assigned": 1}


def test_an_assigned_from_a_worker_without_a_session_is_ignored(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(warm=1)
    harness.workers[1].send(FrameKind.ASSIGNED, {"error": "eh"}, epoch=1)
    harness.open()
    assert harness.worker().number == 1


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (b"", "protocol: frame shorter than its header"),
        (b"\x08" * (HEADER_BYTES - 1), "protocol: frame shorter than its header"),
        (bytes([FrameKind.ASSIGN]) + bytes(HEADER_BYTES - 1), "protocol: a worker does not say 3"),
        (bytes([200]) + bytes(HEADER_BYTES - 1), "protocol: a worker does not say 200"),
        (bytes([FrameKind.INTERPRETER_EXITED]) + bytes(HEADER_BYTES - 1) + b"{", "protocol: Input data was truncated"),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_killed_and_its_session_goes_on(
    harness: CoreHarness, raw: bytes, cause: str
) -> None:
    asked = harness.eval()
    worker = harness.worker()
    harness.apply(harness.core.handle_worker_frame(worker.number, raw, harness.now))
    assert harness.final_reply(asked)["cause"] == cause
    assert harness.killed == [worker.number]
    harness.finish(harness.eval())


@pytest.mark.parametrize("outcome", [5, 77])
def test_an_answer_with_an_ending_that_does_not_exist_is_no_answer(harness: CoreHarness, outcome: int) -> None:
    asked = harness.eval()
    harness.worker().reply(asked, outcome)
    assert harness.final_reply(asked)["status"] == ["done", "error", "worker-lost"]
    assert harness.final_reply(asked)["cause"] == f"protocol: an answer does not end with {int(outcome)}"
    harness.finish(harness.eval())


def test_a_frame_of_two_messages_holds_both(harness: CoreHarness) -> None:
    asked = harness.eval()
    harness.worker().send(FrameKind.REPLY, b"{}", outcome=Outcome.OK, epoch=1, route=1, first=2)
    assert harness.final_reply(asked)["cause"] == "protocol: the first of two messages is longer than both"

"""What a worker says counts if it is the session's worker, of this epoch, on an open route; else it is dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness, FakeWorker
from replwire.link import HEADER_BYTES, FrameKind, Outcome

DONE = {"status": ["done"]}


@pytest.fixture
def crowd(table: CoreHarness) -> tuple[CoreHarness, str, FakeWorker]:
    """Two sessions, and an eval that runs in epoch 2 of one of them."""
    table.open("other")
    table.open()
    table.request("reset", session="work")
    asked = table.eval()
    return table, asked, table.worker()


def frame(worker: FakeWorker, asked: str, **other: int) -> dict[str, int]:
    """The header of a right answer, but for one thing."""
    header = worker.header_of(asked)
    return {"outcome": Outcome.OK, "epoch": header.epoch, "eval": header.eval, "route": header.route} | other


def test_the_right_frame_ends_the_eval(crowd: tuple[CoreHarness, str, FakeWorker]) -> None:
    table, asked, worker = crowd
    worker.send(FrameKind.REPLY, DONE | {"id": asked}, **frame(worker, asked))
    assert table.final_reply(asked)["status"] == ["done"]


@pytest.mark.parametrize("kind", [FrameKind.REPLY, FrameKind.OUTPUT])
@pytest.mark.parametrize("other", [{"epoch": 1}, {"epoch": 3}, {"route": 0}, {"route": 10**18}])
def test_a_frame_of_another_epoch_or_route_is_dropped(
    crowd: tuple[CoreHarness, str, FakeWorker], kind: int, other: dict[str, int]
) -> None:
    table, asked, worker = crowd
    before = len(table.received)
    worker.send(kind, DONE, **frame(worker, asked, **other))
    assert len(table.received) == before
    table.finish(asked)


def test_a_frame_of_another_sessions_worker_is_dropped(crowd: tuple[CoreHarness, str, FakeWorker]) -> None:
    table, asked, worker = crowd
    before = len(table.received)
    table.worker("other").send(FrameKind.REPLY, DONE, **frame(worker, asked))
    assert len(table.received) == before
    table.finish(asked)


def test_a_frame_of_a_worker_that_was_killed_is_dropped(table: CoreHarness) -> None:
    asked = table.eval()
    old = table.worker()
    table.request("reset", session="work")
    table.finish(table.eval())
    before = (len(table.received), table.session().state)
    for kind in FrameKind:
        old.send(kind, DONE, **frame(old, asked))
    assert (len(table.received), table.session().state) == before


def test_an_answer_that_comes_twice_counts_once(crowd: tuple[CoreHarness, str, FakeWorker]) -> None:
    table, asked, worker = crowd
    queued = table.eval()
    worker.send(FrameKind.REPLY, DONE | {"id": asked}, **frame(worker, asked))
    worker.send(FrameKind.REPLY, DONE | {"id": asked}, **frame(worker, asked))
    table.final_reply(asked)
    assert table.running_evals(queued) == [queued]
    assert table.state.semaphore.in_use == 1


def test_an_answer_to_an_eval_that_was_not_sent_yet_is_dropped(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    asked = table.eval()
    worker = table.workers[1]
    worker.send_ready()
    route = next(iter(table.state.routes))
    worker.send(FrameKind.REPLY, DONE, outcome=Outcome.OK, epoch=1, route=route)
    assert table.is_pending(asked)
    worker.send_assigned()
    table.finish(asked)


def test_a_session_is_claimed_once_and_in_its_epoch(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    opening = table.send("new-session", name="work")
    worker = table.workers[1]
    worker.send_ready()
    worker.send(FrameKind.ASSIGNED, {"error": None}, epoch=7)
    assert table.is_pending(opening)
    worker.send(FrameKind.ASSIGNED, {"error": None}, epoch=1)
    worker.send(FrameKind.ASSIGNED, {"error": "late"}, epoch=1)
    assert table.final_reply(opening)["status"] == ["done"]
    assert table.session().state == "idle"


def test_ready_twice_makes_no_second_worker(table: CoreHarness) -> None:
    table.open()
    table.worker().send_ready()
    assert table.request("stats")["stats"]["workers"] == {"starting": 0, "warm": 0, "claimed": 1}


def test_a_claimed_from_a_worker_without_a_session_is_ignored(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(warm=1)
    table.workers[1].send(FrameKind.ASSIGNED, {"error": "eh"}, epoch=1)
    table.open()
    assert table.worker().number == 1


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
    table: CoreHarness, raw: bytes, cause: str
) -> None:
    asked = table.eval()
    worker = table.worker()
    table.apply(table.core.handle_worker_frame(worker.number, raw, table.now))
    assert table.final_reply(asked)["cause"] == cause
    assert table.killed == [worker.number]
    table.finish(table.eval())


@pytest.mark.parametrize("outcome", [5, 77])
def test_an_answer_with_an_ending_that_does_not_exist_is_no_answer(table: CoreHarness, outcome: int) -> None:
    asked = table.eval()
    table.worker().reply(asked, outcome)
    assert table.final_reply(asked)["status"] == ["done", "error", "worker-lost"]
    assert table.final_reply(asked)["cause"] == f"protocol: an answer does not end with {int(outcome)}"
    table.finish(table.eval())


def test_a_frame_of_two_messages_holds_both(table: CoreHarness) -> None:
    asked = table.eval()
    table.worker().send(FrameKind.REPLY, b"{}", outcome=Outcome.OK, epoch=1, route=1, first=2)
    assert table.final_reply(asked)["cause"] == "protocol: the first of two messages is longer than both"

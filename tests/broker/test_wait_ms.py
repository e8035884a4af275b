"""`wait-ms` ends the wait for an eval, which goes on and is read later."""

from __future__ import annotations

from collections.abc import Callable

from core_harness import CoreHarness
from replwire.link import FrameKind, Outcome


def test_when_the_wait_is_over_the_eval_runs_on(harness: CoreHarness) -> None:
    asked = harness.eval(wait_ms=1000)
    harness.wait(1)
    assert harness.final_reply(asked) == {
        "id": asked,
        "status": ["done", "running"],
        "eval-id": 1,
        "epoch": 1,
        "session": "id-1",
        "name": "work",
    }
    assert harness.worker_running(asked) is not None
    harness.wait(100)
    read = harness.send("read", session="work", eval_id=1, wait_ms=5000)
    worker = harness.worker()
    assert worker.frames(FrameKind.REQUEST)[-1][1]["wait-ms"] == 5000
    before = len(harness.replies[asked])
    worker.reply(asked)  # nobody waits under this id any more
    assert len(harness.replies[asked]) == before
    worker.reply(read, out="seven")
    assert harness.final_reply(read)["out"] == "seven"
    assert harness.is_idle()


def test_an_eval_that_ends_within_the_wait_is_answered_once(harness: CoreHarness) -> None:
    asked = harness.eval(wait_ms=1000)
    harness.finish(asked)
    harness.wait(10)
    harness.final_reply(asked)


def test_a_wait_may_be_nothing_at_all(harness: CoreHarness) -> None:
    asked = harness.eval(wait_ms=0)
    harness.wait(0)
    assert harness.final_reply(asked)["status"] == ["done", "running"]


def test_a_wait_is_bounded(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_wait_ms=1000)
    harness.open()
    asked = harness.eval(wait_ms=10**30)
    harness.wait(1)
    assert harness.final_reply(asked)["status"] == ["done", "running"]


def test_a_wait_that_ends_in_the_queue_says_the_position(harness: CoreHarness) -> None:
    first = harness.eval()
    second = harness.eval(wait_ms=1000)
    harness.wait(1)
    answer = harness.final_reply(second)
    assert (answer["status"], answer["queue-position"], answer["eval-id"]) == (["done", "running"], 1, 2)
    harness.finish(first)
    assert harness.worker_running(second) is not None


def test_a_read_of_a_queued_eval_is_held_until_it_runs(harness: CoreHarness) -> None:
    first, second = harness.eval(), harness.eval(wait_ms=0)
    harness.wait(0)
    read = harness.send("read", session="work", eval_id=2, wait_ms=60_000, offset=7)
    worker = harness.worker()
    assert read not in [body["id"] for _, body in worker.frames(FrameKind.REQUEST)]
    harness.finish(first)
    assert [body["id"] for _, body in worker.frames(FrameKind.REQUEST)] == [first, second, read]
    assert worker.frames(FrameKind.REQUEST)[-1][1]["offset"] == 7
    worker.reply(read)
    worker.reply(second)
    assert harness.is_idle()


def test_a_read_of_an_eval_that_stays_queued_says_so_in_the_end(harness: CoreHarness) -> None:
    harness.eval()
    harness.eval(wait_ms=0)
    harness.wait(0)
    read = harness.send("read", session="work", eval_id=2, wait_ms=1000)
    harness.wait(0.999)
    assert harness.is_pending(read)
    harness.wait(0.001)
    assert harness.final_reply(read) == {
        "id": read,
        "status": ["done", "running"],
        "eval-id": 2,
        "epoch": 1,
        "queue-position": 1,
    }


def test_a_read_of_a_queued_eval_that_is_interrupted_learns_that_it_never_ran(harness: CoreHarness) -> None:
    harness.eval()
    harness.eval(wait_ms=0)
    harness.wait(0)
    read = harness.send("read", session="work", eval_id=2, wait_ms=60_000)
    harness.request("interrupt", session="work", interrupt_id=2)
    answer = harness.final_reply(read)
    assert answer["status"] == ["done", "error", "eval-not-found"]
    assert answer["err"] == "eval 2 ended (done interrupted) and never ran"


def test_a_read_of_an_eval_whose_worker_is_not_there_yet_is_held(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    asked = harness.eval()
    read = harness.send("read", session="work", eval_id=1, wait_ms=60_000)
    worker = harness.workers[1]
    worker.send_ready()
    worker.send_assigned()
    assert [body["id"] for _, body in worker.frames(FrameKind.REQUEST)] == [asked, read]
    worker.reply(asked)
    worker.reply(read)
    assert harness.is_idle()


def test_a_read_of_an_eval_whose_worker_takes_longer_than_the_wait_says_that_it_runs(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(auto=False)
    asked = harness.eval(wait_ms=0)
    harness.wait(0)
    read = harness.send("read", session="work", eval_id=1, wait_ms=100)
    harness.wait(0.1)
    for request in (asked, read):
        assert harness.final_reply(request)["status"] == ["done", "running"]
        assert "queue-position" not in harness.final_reply(request)
    worker = harness.workers[1]
    worker.send_ready()
    worker.send_assigned()
    worker.reply(asked)
    assert harness.log_lines == []
    assert harness.is_idle()


def test_output_that_went_with_its_worker_cannot_be_read(harness: CoreHarness) -> None:
    harness.finish(harness.eval())
    harness.worker().exit()
    for _ in range(2):  # without a worker, and with a fresh one
        answer = harness.request("read", session="work", eval_id=1)
        assert answer["status"] == ["done", "error", "eval-not-found"]
        assert answer["err"] == "eval 1 ended (done); its output was lost with the worker of epoch 1"
        assert (answer["eval-id"], answer["epoch"]) == (1, 2)
        harness.finish(harness.eval())


def test_a_read_is_not_answered_by_the_broker_before_its_wait_is_over(harness: CoreHarness) -> None:
    harness.eval(wait_ms=0)
    read = harness.send("read", session="work", eval_id=1, wait_ms=30_000)
    harness.wait(39.999)
    assert harness.is_pending(read)
    harness.wait(0.001)
    answer = harness.final_reply(read)
    assert (answer["status"], answer["err"]) == (
        ["done", "error", "timeout"],
        "read: no answer within 40000 ms",
    )
    harness.worker().reply(read)
    harness.final_reply(read)


def test_a_worker_that_does_not_answer_is_answered_for(harness: CoreHarness) -> None:
    harness.open()
    asked = harness.send("info", session="work")
    harness.wait(10)
    answer = harness.final_reply(asked)
    assert (answer["err"], answer["retry-after-ms"]) == ("info: no answer within 10000 ms", 1000)
    assert harness.is_idle()


def test_requests_of_a_session_without_a_worker_get_it_one(harness: CoreHarness) -> None:
    harness.open()
    harness.worker().exit()
    asked = harness.send("stdin", session="work", input="x")
    harness.worker().reply(asked)
    harness.final_reply(asked)
    assert harness.session().state == "idle"


def test_requests_are_held_while_the_worker_starts_and_come_after_its_eval(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(auto=False)
    asked = harness.eval()
    stdin = harness.send("stdin", session="work", input="x")
    worker = harness.workers[1]
    worker.send_ready()
    assert worker.frames(FrameKind.REQUEST) == []
    worker.send_assigned()
    assert [body["id"] for _, body in worker.frames(FrameKind.REQUEST)] == [asked, stdin]


def test_a_message_in_between_ends_nothing(harness: CoreHarness) -> None:
    asked = harness.eval()
    harness.worker().reply(asked, Outcome.NONE, status=["need-input"])
    assert harness.is_pending(asked)
    assert harness.worker_running(asked) is not None
    harness.finish(asked)


def test_a_read_may_not_ask_for_more_time_than_there_is(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_wait_ms=1000, ask_timeout_ms=2000)
    harness.open()
    read = harness.send("read", session="work", eval_id=0, wait_ms=10**300)
    harness.wait(3)
    assert harness.final_reply(read)["err"] == "read: no answer within 3000 ms"

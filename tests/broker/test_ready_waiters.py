"""Waiting is not running: `wait-ms` ends the wait, the eval goes on and is read later."""

from __future__ import annotations

from collections.abc import Callable

from core_harness import CoreHarness
from replwire.link import FrameKind, Outcome


def test_when_the_wait_is_over_the_eval_runs_on(table: CoreHarness) -> None:
    asked = table.eval(wait_ms=1000)
    table.wait(1)
    assert table.final_reply(asked) == {
        "id": asked,
        "status": ["done", "running"],
        "eval-id": 1,
        "epoch": 1,
        "session": "id-1",
        "name": "work",
    }
    assert table.worker_running(asked) is not None
    table.wait(100)
    read = table.send("read", session="work", eval_id=1, wait_ms=5000)
    worker = table.worker()
    assert worker.frames(FrameKind.REQUEST)[-1][1]["wait-ms"] == 5000
    before = len(table.replies[asked])
    worker.reply(asked)  # nobody waits under this id any more
    assert len(table.replies[asked]) == before
    worker.reply(read, out="seven")
    assert table.final_reply(read)["out"] == "seven"
    assert table.is_idle()


def test_an_eval_that_ends_within_the_wait_is_answered_once(table: CoreHarness) -> None:
    asked = table.eval(wait_ms=1000)
    table.finish(asked)
    table.wait(10)
    table.final_reply(asked)


def test_a_wait_may_be_nothing_at_all(table: CoreHarness) -> None:
    asked = table.eval(wait_ms=0)
    table.wait(0)
    assert table.final_reply(asked)["status"] == ["done", "running"]


def test_a_wait_is_bounded(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_wait_ms=1000)
    table.open()
    asked = table.eval(wait_ms=10**30)
    table.wait(1)
    assert table.final_reply(asked)["status"] == ["done", "running"]


def test_a_wait_that_ends_in_the_queue_says_the_position(table: CoreHarness) -> None:
    first = table.eval()
    second = table.eval(wait_ms=1000)
    table.wait(1)
    answer = table.final_reply(second)
    assert (answer["status"], answer["queue-position"], answer["eval-id"]) == (["done", "running"], 1, 2)
    table.finish(first)
    assert table.worker_running(second) is not None


def test_a_read_of_a_queued_eval_is_held_until_it_runs(table: CoreHarness) -> None:
    first, second = table.eval(), table.eval(wait_ms=0)
    table.wait(0)
    read = table.send("read", session="work", eval_id=2, wait_ms=60_000, offset=7)
    worker = table.worker()
    assert read not in [body["id"] for _, body in worker.frames(FrameKind.REQUEST)]
    table.finish(first)
    assert [body["id"] for _, body in worker.frames(FrameKind.REQUEST)] == [first, second, read]
    assert worker.frames(FrameKind.REQUEST)[-1][1]["offset"] == 7
    worker.reply(read)
    worker.reply(second)
    assert table.is_idle()


def test_a_read_of_an_eval_that_stays_queued_says_so_in_the_end(table: CoreHarness) -> None:
    table.eval()
    table.eval(wait_ms=0)
    table.wait(0)
    read = table.send("read", session="work", eval_id=2, wait_ms=1000)
    table.wait(0.999)
    assert table.is_pending(read)
    table.wait(0.001)
    assert table.final_reply(read) == {
        "id": read,
        "status": ["done", "running"],
        "eval-id": 2,
        "epoch": 1,
        "queue-position": 1,
    }


def test_a_read_of_a_queued_eval_that_is_interrupted_learns_that_it_never_ran(table: CoreHarness) -> None:
    table.eval()
    table.eval(wait_ms=0)
    table.wait(0)
    read = table.send("read", session="work", eval_id=2, wait_ms=60_000)
    table.request("interrupt", session="work", interrupt_id=2)
    answer = table.final_reply(read)
    assert answer["status"] == ["done", "error", "eval-not-found"]
    assert answer["err"] == "eval 2 ended (done interrupted) and never ran"


def test_a_read_of_an_eval_whose_worker_is_not_there_yet_is_held(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    asked = table.eval()
    read = table.send("read", session="work", eval_id=1, wait_ms=60_000)
    worker = table.workers[1]
    worker.send_ready()
    worker.send_assigned()
    assert [body["id"] for _, body in worker.frames(FrameKind.REQUEST)] == [asked, read]
    worker.reply(asked)
    worker.reply(read)
    assert table.is_idle()


def test_a_read_of_an_eval_whose_worker_takes_longer_than_the_wait_says_that_it_runs(
    new_table: Callable[..., CoreHarness],
) -> None:
    table = new_table(auto=False)
    asked = table.eval(wait_ms=0)
    table.wait(0)
    read = table.send("read", session="work", eval_id=1, wait_ms=100)
    table.wait(0.1)
    for request in (asked, read):
        assert table.final_reply(request)["status"] == ["done", "running"]
        assert "queue-position" not in table.final_reply(request)
    worker = table.workers[1]
    worker.send_ready()
    worker.send_assigned()
    worker.reply(asked)
    assert table.log_lines == []
    assert table.is_idle()


def test_output_that_went_with_its_worker_cannot_be_read(table: CoreHarness) -> None:
    table.finish(table.eval())
    table.worker().exit()
    for _ in range(2):  # without a worker, and with a fresh one
        answer = table.request("read", session="work", eval_id=1)
        assert answer["status"] == ["done", "error", "eval-not-found"]
        assert answer["err"] == "eval 1 ended (done); its output was lost with the worker of epoch 1"
        assert (answer["eval-id"], answer["epoch"]) == (1, 2)
        table.finish(table.eval())


def test_a_read_is_not_answered_by_the_broker_before_its_wait_is_over(table: CoreHarness) -> None:
    table.eval(wait_ms=0)
    read = table.send("read", session="work", eval_id=1, wait_ms=30_000)
    table.wait(39.999)
    assert table.is_pending(read)
    table.wait(0.001)
    answer = table.final_reply(read)
    assert (answer["status"], answer["err"]) == (
        ["done", "error", "timeout"],
        "read: no answer within 40000 ms",
    )
    table.worker().reply(read)
    table.final_reply(read)


def test_a_worker_that_does_not_answer_is_answered_for(table: CoreHarness) -> None:
    table.open()
    asked = table.send("info", session="work")
    table.wait(10)
    answer = table.final_reply(asked)
    assert (answer["err"], answer["retry-after-ms"]) == ("info: no answer within 10000 ms", 1000)
    assert table.is_idle()


def test_requests_of_a_session_without_a_worker_get_it_one(table: CoreHarness) -> None:
    table.open()
    table.worker().exit()
    asked = table.send("stdin", session="work", input="x")
    table.worker().reply(asked)
    table.final_reply(asked)
    assert table.session().state == "idle"


def test_requests_are_held_while_the_worker_starts_and_come_after_its_eval(
    new_table: Callable[..., CoreHarness],
) -> None:
    table = new_table(auto=False)
    asked = table.eval()
    stdin = table.send("stdin", session="work", input="x")
    worker = table.workers[1]
    worker.send_ready()
    assert worker.frames(FrameKind.REQUEST) == []
    worker.send_assigned()
    assert [body["id"] for _, body in worker.frames(FrameKind.REQUEST)] == [asked, stdin]


def test_a_message_in_between_ends_nothing(table: CoreHarness) -> None:
    asked = table.eval()
    table.worker().reply(asked, Outcome.NONE, status=["need-input"])
    assert table.is_pending(asked)
    assert table.worker_running(asked) is not None
    table.finish(asked)


def test_a_read_may_not_ask_for_more_time_than_there_is(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_wait_ms=1000, ask_timeout_ms=2000)
    table.open()
    read = table.send("read", session="work", eval_id=0, wait_ms=10**300)
    table.wait(3)
    assert table.final_reply(read)["err"] == "read: no answer within 3000 ms"

"""Checkpoints and rollbacks: the worker decides, the core answers everything that counted on the state that is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness
from replwire import events
from replwire.link import CheckpointedBody, FrameKind, Outcome, encode, pack


@pytest.fixture
def rolling(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    """Return a core whose workers go on from checkpoints."""
    return new_harness(checkpoints=True)


def _run(harness: CoreHarness, *codes: str, **fields: Any) -> None:
    for code in codes:
        harness.finish(harness.eval("work", code, **fields))


def test_a_checkpoint_has_its_turn_behind_the_running_eval_and_an_event(rolling: CoreHarness) -> None:
    running = rolling.eval()
    asked = rolling.send("checkpoint", session="work", name="clean")
    assert rolling.running_evals(running, asked) == [running]
    rolling.finish(running)
    answer = rolling.finish(asked, checkpoint=3, **{"checkpoint-name": "clean"})
    assert (answer["checkpoint"], answer["checkpoint-name"]) == (3, "clean")
    taken = next(each for each in rolling.events if isinstance(each, events.SessionCheckpoint))
    assert (taken.checkpoint, taken.name, taken.eval) == (3, "clean", 2)
    assert rolling.is_idle()


def test_reports_of_automatic_checkpoints_reach_those_who_subscribe_to_them(rolling: CoreHarness) -> None:
    _run(rolling, "1")
    number, body = rolling.worker().number, encode(CheckpointedBody(checkpoint=7, eval=1, count=3))

    def report(epoch: int) -> None:
        rolling.send_worker_frame(number, pack(FrameKind.CHECKPOINTED, body, epoch=epoch))

    everything = rolling.send("subscribe", session="work")
    report(rolling.session().epoch)
    report(rolling.session().epoch + 1)
    (event,) = [each["event"] for each in rolling.replies[everything] if "event" in each]
    assert (event["type"], event["checkpoint"], event["eval"], event["count"]) == ("session/auto-checkpoint", 7, 1, 3)
    assert "seq" not in event
    rolling.request("unsubscribe", subscription=everything)
    before = len(rolling.received)
    report(rolling.session().epoch)
    assert len(rolling.received) == before
    assert rolling.event_types().count("session/auto-checkpoint") == 1


@pytest.mark.parametrize("name", ["", "7", "a b", "x" * 65, "../up"])
def test_a_checkpoint_with_a_name_that_is_none_is_refused(rolling: CoreHarness, name: str) -> None:
    rolling.open()
    assert "invalid-request" in rolling.request("checkpoint", session="work", name=name)["status"]


def test_a_rollback_raises_the_epoch_and_the_worker_stays(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1", "x = 2")
    worker, epoch = rolling.worker(), rolling.session().epoch
    asked = rolling.send("rollback", session="work")
    worker.send_rolled_back(asked, to=2, eval_id=1, last=2, undone=[2], name="clean", not_restored=["a thread"])
    answer = rolling.final_reply(asked)
    assert answer["status"] == ["done"]
    assert (answer["state"], answer["checkpoint"], answer["checkpoint-name"]) == ("rolled-back", 2, "clean")
    assert (answer["undone-evals"], answer["not-restored"], answer["epoch"]) == ([2], ["a thread"], epoch + 1)
    (header, body) = worker.frames(FrameKind.RESUME)[0]
    assert (header.epoch, body) == (epoch + 1, {"report": False})
    assert rolling.worker() is worker
    assert [each.epoch for each in rolling.saved_state().sessions] == [epoch + 1]
    assert rolling.is_idle()


def test_a_refused_rollback_leaves_everything_as_it_is(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1")
    epoch, running = rolling.session().epoch, rolling.eval()
    asked = rolling.send("rollback", session="work", to="gone")
    status = ["done", "error", "checkpoint-not-found"]
    rolling.worker().reply(asked, Outcome.ERROR, status=status, **{"undone-evals": [1, 2]})
    assert rolling.final_reply(asked)["undone-evals"] == [1, 2]
    assert rolling.session().epoch == epoch
    rolling.finish(running)


def test_a_rollback_interrupts_the_running_eval_and_ends_the_queued_ones(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1")
    running, queued = rolling.eval(code="loop"), rolling.eval(code="after")
    asked = rolling.send("rollback", session="work", to=1)
    rolling.worker().send_rolled_back(asked, last=2, undone=[1, 2])
    ended = rolling.final_reply(running)
    assert ended["status"] == ["done", "interrupted"]
    assert (ended["state"], ended["checkpoint"], ended["undone-evals"]) == ("rolled-back", 1, [1, 2])
    waited = rolling.final_reply(queued)
    assert waited["status"] == ["done", "error", "session-reset"]
    assert (waited["state"], "never ran" in waited["err"]) == ("rolled-back", True)
    assert rolling.final_reply(asked)["state"] == "rolled-back"
    assert rolling.is_idle()
    _run(rolling, "on")


def test_undone_evals_stay_in_history_and_jobs_with_a_mark_and_can_be_read(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1", "x = 2")
    asked = rolling.send("rollback", session="work")
    rolling.worker().send_rolled_back(asked, eval_id=1, last=2, undone=[2])
    _run(rolling, "x = 3")
    history = rolling.request("history", session="work")["history"]
    assert [(each["eval-id"], each["undone"]) for each in history] == [(1, False), (2, True), (3, False)]
    assert [each["epoch"] for each in history] == [1, 1, 2]
    assert [each["undone"] for each in rolling.request("jobs", session="work")["jobs"]] == [False, True, False]
    read = rolling.send("read", session="work", eval_id=2)
    assert rolling.worker().op_of(read) == "read"


def test_going_forward_again_takes_the_mark_away(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1", "x = 2")
    back = rolling.send("rollback", session="work")
    rolling.worker().send_rolled_back(back, eval_id=1, last=2, undone=[2])
    forth = rolling.send("rollback", session="work", to=3)
    rolling.worker().send_rolled_back(forth, to=3, eval_id=2, last=2, redone=[2])
    assert rolling.final_reply(forth)["redone-evals"] == [2]
    assert [each["undone"] for each in rolling.request("jobs", session="work")["jobs"]] == [False, False]


def test_a_key_of_an_undone_eval_is_a_conflict_and_never_its_stored_success(rolling: CoreHarness) -> None:
    _run(rolling, "pay()", idempotency_key="k")
    asked = rolling.send("rollback", session="work", to=1)
    rolling.worker().send_rolled_back(asked, last=1, undone=[1])
    again = rolling.request("eval", session="work", code="pay()", idempotency_key="k")
    assert again["status"] == ["done", "error", "idempotency-conflict"]
    assert "undone" in again["err"]


def test_a_key_of_an_eval_that_never_ran_may_be_sent_again(rolling: CoreHarness) -> None:
    rolling.eval(code="loop")
    rolling.eval(code="pay()", idempotency_key="k")
    asked = rolling.send("rollback", session="work", to=1)
    rolling.worker().send_rolled_back(asked, last=1, undone=[1])
    again = rolling.eval(code="pay()", idempotency_key="k")
    assert rolling.running_evals(again) == [again]


def test_a_crash_costs_the_eval_and_the_session_goes_on_from_its_checkpoint(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1")
    worker, running, queued = rolling.worker(), rolling.eval(code="abort()"), rolling.eval(code="after")
    worker.send_rolled_back(None, to=2, eval_id=1, last=2, undone=[2], cause="SIGABRT")
    ended = rolling.final_reply(running)
    assert ended["status"] == ["done", "error", "worker-lost"]
    assert (ended["state"], ended["cause"], ended["checkpoint"]) == ("rolled-back", "SIGABRT", 2)
    assert (ended["undone-evals"], ended["epoch"]) == ([2], 2)
    assert rolling.final_reply(queued)["status"][-1] == "session-reset"
    assert rolling.killed == []
    assert worker.frames(FrameKind.RESUME)[-1][1] == {"report": False}
    _run(rolling, "x")
    results = [each for each in rolling.event_types(of="id-1") if each.startswith("session/")]
    assert "session/rolled-back" in results
    assert "session/lost" not in results


def test_a_crash_that_no_client_hears_of_is_to_be_said_by_the_next_result(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1")
    rolling.worker().send_rolled_back(None, eval_id=1, last=1, cause="killed by SIGKILL")
    assert rolling.worker().frames(FrameKind.RESUME)[-1][1] == {"report": True}


def test_an_eval_that_did_not_reach_the_interpreter_before_it_died_is_said_to_have_never_run(
    rolling: CoreHarness,
) -> None:
    _run(rolling, "x = 1")
    running = rolling.eval()
    rolling.worker().send_rolled_back(None, eval_id=1, last=1, cause="killed by SIGKILL")
    ended = rolling.final_reply(running)
    assert ended["status"] == ["done", "error", "session-reset"]
    assert "never ran" in ended["err"]


def test_answers_of_the_epoch_that_is_over_are_dropped(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1")
    worker, running = rolling.worker(), rolling.eval()
    header = worker.header_of(running)
    worker.send_rolled_back(None, eval_id=1, last=2, undone=[2], cause="SIGABRT")
    after = rolling.eval()
    worker.send(FrameKind.REPLY, {"id": running}, outcome=1, epoch=header.epoch, eval=2, route=header.route)
    worker.send_rolled_back(None, eval_id=1, last=2, undone=[2], cause="SIGABRT", to=9)
    worker.send(FrameKind.ROLLED_BACK, {"checkpoint": 9, "eval_id": 0, "last_eval": 2}, epoch=header.epoch)
    assert rolling.session().epoch == 3
    assert rolling.final_reply(after)["checkpoint"] == 9


def test_code_that_ignores_its_interrupt_costs_itself_alone(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1")
    running = rolling.eval(code="loop", timeout_ms=1000)
    rolling.wait(3.0)
    assert rolling.cancels()[-1]["kill"].startswith("killed: it ignored the interrupt")
    assert rolling.killed == []
    rolling.worker().send_rolled_back(None, eval_id=1, last=2, undone=[2], cause="killed: it ignored the interrupt")
    ended = rolling.final_reply(running)
    assert ended["status"] == ["done", "error", "timeout"]
    assert (ended["state"], ended["checkpoint"], ended["max-eval-time-ms"]) == ("rolled-back", 1, 1000)
    assert rolling.is_idle()


def test_a_killed_interpreter_without_a_checkpoint_is_a_timeout_that_loses_the_state(rolling: CoreHarness) -> None:
    running = rolling.eval(code="loop", timeout_ms=1000)
    rolling.wait(3.0)
    rolling.worker().send_interpreter_exited("killed: it ignored the interrupt")
    ended = rolling.final_reply(running)
    assert (ended["status"], ended["state"]) == (["done", "error", "timeout"], "lost")


def test_a_worker_that_does_not_kill_its_interpreter_is_killed(rolling: CoreHarness) -> None:
    running, worker = rolling.eval(code="loop", timeout_ms=1000), rolling.worker().number
    rolling.wait(3.0 + 5.0)
    assert rolling.killed == [worker]
    assert (rolling.final_reply(running)["status"][-1], rolling.final_reply(running)["state"]) == ("timeout", "lost")


def test_a_session_without_a_worker_has_no_checkpoints_and_none_is_started_to_look(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1")
    rolling.worker().exit()
    assert rolling.request("ls-checkpoints", session="work")["checkpoints"] == []
    for op, fields in (("rollback", {}), ("drop-checkpoint", {"checkpoint": 1})):
        assert "checkpoint-not-found" in rolling.request(op, session="work", **fields)["status"]
    assert len(rolling.spawned) == 1


def test_a_rollback_needs_the_right_to_write_and_is_refused_in_plan_mode(rolling: CoreHarness) -> None:
    rolling.open()
    for op, fields in (("checkpoint", {}), ("rollback", {}), ("drop-checkpoint", {"checkpoint": 1})):
        assert "plan-mode" in rolling.request(op, session="work", mode="plan", **fields)["status"]
    rolling.core.set_identity(b"p2", "guest")
    rolling.request("share", session="work", who="guest", level="read")
    seen = "self/work"
    listing = rolling.send("ls-checkpoints", b"p2", session=seen)
    rolling.worker().reply(listing, checkpoints=[])
    assert "forbidden" in rolling.request("rollback", b"p2", session=seen)["status"]
    rolling.request("share", session="work", who="guest", level="write")
    assert rolling.is_pending(rolling.send("rollback", b"p2", session=seen))


def test_a_worker_that_is_nobodys_has_no_checkpoint_and_is_killed(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(warm=1, checkpoints=True)
    worker = next(iter(harness.workers.values()))
    worker.send(FrameKind.ROLLED_BACK, {"checkpoint": 1, "eval_id": 0, "last_eval": 0})
    assert worker.number in harness.killed


def test_rollbacks_are_counted_by_reason(rolling: CoreHarness) -> None:
    _run(rolling, "x = 1")
    rolling.worker().send_rolled_back(None, eval_id=1, last=1, cause="killed by SIGKILL")
    asked = rolling.send("rollback", session="work", to=1)
    rolling.worker().send_rolled_back(asked, last=1, undone=[1])
    assert dict(rolling.core.read_metrics().metrics.rollbacks) == {"crash": 1, "request": 1}


def test_a_rollback_request_that_gets_no_answer_ends_with_a_timeout(rolling: CoreHarness) -> None:
    rolling.open()
    asked = rolling.send("rollback", session="work")
    rolling.wait(11)
    assert rolling.final_reply(asked)["status"][-1] == "timeout"
    rolling.worker().send_rolled_back(None, last=0)
    assert rolling.is_idle()

"""The broker's restart: sessions, their evals and their workers are those of the broker before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replbroker.core.sessions.session import ADOPTING, BUSY, IDLE
from replwire.link import FrameKind, HelloBody, Outcome

OTHER = b"p2"
New = Callable[..., CoreHarness]


def test_a_session_goes_on_as_it_was(harness: CoreHarness) -> None:
    harness.request("new-session", name="work", cwd="/tmp", env=["A=1"], agent="ada")
    harness.request("share", session="work", who="uid:7", level="read")
    harness.request("set-mode", session="work", to="plan", reason="look only")
    harness.wait(100)
    worker = harness.worker()
    entry, shares = harness.request("ls-sessions")["sessions"], dict(harness.session().shares)
    assert harness.restart() == []
    assert harness.worker() is worker
    now = harness.request("ls-sessions")["sessions"]
    assert [each | {"last-activity": ""} for each in now] == [each | {"last-activity": ""} for each in entry]
    session = harness.session()
    assert (session.shares, session.env, session.mode_reason, session.state) == (shares, ["A=1"], "look only", IDLE)


def test_an_eval_that_runs_goes_on_and_its_result_can_be_read(harness: CoreHarness) -> None:
    running = harness.eval("work", code="slow")
    harness.restart()
    assert harness.session().state == BUSY
    assert [(each["eval-id"], each["state"]) for each in harness.request("jobs", session="work")["jobs"]] == [
        (1, "running")
    ]
    harness.finish_abandoned(running)
    read = harness.send("read", session="work", eval_id=1)
    assert harness.worker().op_of(read) == "read"
    assert harness.finish(harness.eval("work"))["status"] == ["done"]
    assert [each["code"] for each in harness.request("history", session="work")["history"]] == ["slow", "1"]


def test_evals_that_wait_run_once_in_their_order(harness: CoreHarness) -> None:
    first = harness.eval("work", code="a")
    waiting = [harness.eval("work", code=code) for code in "bc"]
    harness.restart()
    worker = harness.worker()
    for each in (first, *waiting):
        harness.finish_abandoned(each)
    asked = [body["id"] for header, body in worker.frames(FrameKind.REQUEST) if header.eval]
    assert asked == [first, *waiting]
    assert harness.is_idle()


def test_an_eval_whose_end_was_not_received_ends_with_what_the_worker_sends_again(harness: CoreHarness) -> None:
    running = harness.eval("work")
    harness.effects_left = 0
    harness.finish_abandoned(running)
    harness.restart()
    assert harness.session().state == IDLE
    assert harness.request("jobs", session="work")["jobs"][0]["status"] == ["done"]


def test_an_eval_that_never_reached_its_worker_is_sent_again(harness: CoreHarness) -> None:
    harness.open("work")
    harness.effects_left = 1  # it is saved, and not sent
    harness.eval("work", id="cut")
    assert harness.worker().last_eval == 0
    harness.restart()
    assert [header.eval for header, body in harness.worker().frames(FrameKind.REQUEST) if body["id"] == "cut"] == [1]


def test_a_client_that_asks_again_with_its_key_gets_the_one_eval(harness: CoreHarness) -> None:
    fields = {"session": "work", "code": "x", "if_missing": "create", "idempotency_key": "k"}
    running = harness.send("eval", **fields)
    harness.restart()
    again = harness.send("eval", OTHER, **fields)
    assert harness.worker().op_of(again) == "read"
    harness.finish_abandoned(running)
    harness.restart()
    once_more = harness.send("eval", OTHER, **fields)
    assert harness.worker().op_of(once_more) == "read"
    assert harness.request("eval", OTHER, **fields | {"code": "y"})["status"][-1] == "idempotency-conflict"


def test_the_key_of_an_eval_whose_session_is_gone_never_runs_again(harness: CoreHarness) -> None:
    fields = {"session": "work", "code": "x", "if_missing": "create", "idempotency_key": "k"}
    harness.finish(harness.send("eval", **fields))
    harness.request("close", session="work")
    harness.restart()
    harness.restart()
    assert harness.request("eval", OTHER, **fields)["status"][-1] == "eval-not-found"
    assert harness.spawned == [1]


def test_until_its_worker_is_back_requests_to_a_session_wait(harness: CoreHarness) -> None:
    harness.finish(harness.eval("work"))
    harness.restart(come_back=False)
    assert harness.session().state == ADOPTING
    asked, read = harness.eval("work"), harness.send("read", session="work", eval_id=1)
    assert harness.is_pending(asked)
    assert harness.is_pending(read)
    harness.come_back()
    assert harness.worker().op_of(read) == "read"
    assert harness.finish(asked)["status"] == ["done"]


def test_a_worker_that_does_not_come_back_is_lost_with_the_cause(new_harness: New) -> None:
    harness = new_harness(worker_adopt_ms=5000)
    harness.eval("work")
    harness.restart(come_back=False)
    waiting = harness.eval("work")
    harness.wait(4.9)
    assert harness.is_pending(waiting)
    harness.wait(0.2)
    lost = harness.final_reply(waiting)
    assert (lost["status"][-1], lost["epoch"]) == ("worker-lost", 2)
    assert lost["cause"] == "its worker did not come back within 5000 ms"
    assert harness.finish(harness.eval("work"))["epoch"] == 2


def test_a_session_whose_worker_has_died_meanwhile_is_lost_and_told(harness: CoreHarness) -> None:
    harness.open("work")
    harness.open("other")
    del harness.workers[harness.worker().number]
    assert harness.restart() == ["work"]
    assert [each.name for each in harness.state.sessions] == ["other"]
    again = harness.open("work")
    assert (again["state"], again["epoch"]) == ("lost", 2)


def test_a_time_limit_counts_while_no_broker_runs(harness: CoreHarness) -> None:
    harness.eval("work", timeout_ms=2000)
    harness.now += 1.5
    harness.restart()
    harness.wait(0.4)
    assert harness.cancels() == []
    harness.wait(0.2)
    assert [each["limit_ms"] for each in harness.cancels()] == [2000]


def test_an_interrupt_reaches_a_worker_that_comes_back_later(harness: CoreHarness) -> None:
    running = harness.eval("work")
    harness.restart(come_back=False)
    assert harness.request("interrupt", session="work")["interrupted"] == ["work"]
    worker = harness.worker()
    assert worker.frames(FrameKind.CANCEL) == []
    harness.come_back()
    assert len(worker.frames(FrameKind.CANCEL)) == 1
    worker.reply(running, Outcome.INTERRUPTED)
    assert harness.is_idle()


@pytest.mark.parametrize("cut", [0, 1])
def test_a_crash_that_was_told_at_that_moment_is_told_once(new_harness: New, cut: int) -> None:
    """Cut 0: the record of it was not written; 1: it was, and the worker was not told to go on."""
    harness = new_harness(checkpoints=True)
    harness.eval("work")
    worker = harness.worker()
    harness.effects_left = cut
    worker.send_rolled_back(last=1, undone=[1], cause="SIGSEGV")
    harness.restart()
    assert harness.worker() is worker
    assert (harness.session().epoch, worker.rolled_back) == (2, None)
    assert harness.request("jobs", session="work")["jobs"][0]["undone"] is True
    assert harness.finish(harness.eval("work"))["epoch"] == 2


def test_an_eval_that_the_worker_has_although_the_journal_does_not_say_so_does_not_run_twice(
    harness: CoreHarness,
) -> None:
    """The last record was lost, on a full disk perhaps."""
    harness.eval("work", code="first")
    harness.finish_abandoned("r1")
    waits = harness.eval("work")
    harness.restart(come_back=False)
    session, worker = harness.session(), harness.worker()
    again = harness.eval("work")
    body = HelloBody("t", 2, session.id, session.epoch, session.eval_count)
    worker.send(FrameKind.HELLO, body)
    lost = harness.final_reply(again)
    assert (lost["status"][-1], "unknown" in lost["err"]) == ("worker-lost", True)
    assert harness.worker_running(waits) is not None


def test_a_worker_with_another_session_is_not_adopted(harness: CoreHarness) -> None:
    harness.open("work")
    harness.restart(come_back=False)
    worker = harness.worker()
    worker.send(FrameKind.HELLO, HelloBody("t", 2, "somebody-else", 1))
    assert worker.number in harness.killed
    assert harness.finish(harness.eval("work"))["epoch"] == 2


def test_a_link_that_breaks_without_the_broker_is_made_good(harness: CoreHarness) -> None:
    running = harness.eval("work")
    harness.come_back()
    assert harness.session().state == BUSY
    assert harness.finish(running)["status"] == ["done"]


def test_routes_of_one_broker_are_never_used_by_another(harness: CoreHarness) -> None:
    harness.open("work")
    old = harness.send("complete", session="work", code="a", pos=1)
    worker = harness.worker()
    route = worker.header_of(old).route
    harness.restart()
    new = harness.send("complete", session="work", code="b", pos=1)
    worker.send(FrameKind.REPLY, {"id": old, "status": ["done"]}, outcome=Outcome.OK, epoch=1, route=route)
    assert harness.is_pending(new)
    assert worker.header_of(new).route > route


def test_a_runtime_that_is_not_there_any_more_ends_its_sessions_and_their_workers(new_harness: New) -> None:
    harness = new_harness(runtimes=("python", "node"))
    harness.open("work", runtime="node")
    number = harness.worker().number
    harness.setup = dataclasses.replace(harness.setup, runtimes=("python",))
    assert harness.restart() == ["work"]
    assert number in harness.killed


def test_a_session_that_was_starting_starts_again(new_harness: New) -> None:
    harness = new_harness(auto=False)
    asked = harness.eval("work", id="first")
    harness.restart()
    assert harness.is_pending(asked)
    assert harness.spawned == [1, 2]
    worker = harness.workers[2]
    worker.send_ready()
    worker.send_assigned()
    assert worker.last_eval == 1


def test_an_ephemeral_session_ends_with_its_eval_also_after_a_restart(harness: CoreHarness) -> None:
    asked = harness.eval(None, idempotency_key="k")
    harness.restart()
    harness.finish_abandoned(asked)
    assert len(harness.state.sessions) == 0
    assert harness.core.export()[1] != []
    again = harness.request("eval", OTHER, code="1", idempotency_key="k")
    assert again["status"][-1] == "eval-not-found"

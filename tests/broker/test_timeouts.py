"""Time limits: the code is asked to stop first, killed after the grace, and what waits has a limit too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import FrameKind, Outcome


def test_code_at_its_time_limit_is_interrupted_and_keeps_its_state(table: CoreHarness) -> None:
    asked = table.eval(timeout_ms=2000)
    worker = table.worker()
    table.wait(1.999)
    assert table.cancels() == []
    table.wait(0.001)
    assert [cancel["limit_ms"] for cancel in table.cancels()] == [2000]
    header = worker.frames(FrameKind.CANCEL)[0][0]
    assert (header.route, header.eval, header.epoch) == (worker.header_of(asked).route, 1, 1)
    table.finish(asked, Outcome.TIMEOUT, status=["done", "error", "timeout"], state="kept")
    assert table.request("jobs", session="work")["jobs"][0]["status"] == ["done", "error", "timeout"]
    assert table.killed == []
    assert table.session().epoch == 1
    table.wait(100)
    table.finish(table.eval())
    assert table.is_idle()


def test_code_that_ignores_the_interrupt_loses_its_worker_after_the_grace(table: CoreHarness) -> None:
    asked = table.eval(timeout_ms=2000)
    number = table.worker().number
    table.wait(3.999)
    assert table.is_pending(asked)
    table.wait(0.001)
    assert table.final_reply(asked) == {
        "id": asked,
        "status": ["done", "error", "timeout"],
        "err": "eval timed out after 2000 ms",
        "eval-id": 1,
        "epoch": 2,
        "state": "lost",
        "cause": "killed: it ignored the interrupt at its time limit of 2000 ms",
        "hint": "the code did not stop within 2000 ms of its interrupt",
        "max-eval-time-ms": 2000,
        "duration-ms": 4000.0,
    }
    assert table.killed == [number]
    assert table.request("jobs", session="work")["jobs"][0]["status"] == ["done", "error", "timeout"]
    assert table.session().lost_cause is None  # the caller has been told
    table.finish(table.eval())
    assert table.worker().number != number
    assert table.worker().frames(FrameKind.ASSIGN)[0][1]["lost"] is None


def test_no_grace_means_no_grace(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(interrupt_grace_ms=0)
    asked = table.eval(timeout_ms=1000)
    table.wait(1)
    assert table.final_reply(asked)["state"] == "lost"


@pytest.mark.parametrize(
    ("asked_for", "granted"),
    [
        ({}, 5),
        ({"timeout_ms": 3000}, 3),
        ({"timeout_ms": 10**30}, 5),
        ({"wait_ms": 0}, 60),
        ({"wait_ms": 0, "timeout_ms": 20_000}, 20),
        ({"wait_ms": 10**30, "timeout_ms": 10**30}, 60),
    ],
)
def test_a_caller_may_ask_for_less_time_and_never_for_more(
    new_table: Callable[..., CoreHarness], asked_for: dict[str, int], granted: int
) -> None:
    table = new_table(max_eval_time_ms=5000, max_job_time_ms=60_000)
    table.eval(**asked_for)
    table.wait(granted - 0.001)
    assert table.cancels() == []
    table.wait(0.001)
    assert [cancel["limit_ms"] for cancel in table.cancels()] == [granted * 1000]


def test_the_limit_counts_from_when_the_code_runs(table: CoreHarness) -> None:
    first = table.eval(timeout_ms=10_000)
    second = table.eval(timeout_ms=15_000)
    table.wait(9)
    table.finish(first)
    table.wait(14.999)
    assert table.cancels() == []
    table.wait(0.001)
    assert [cancel["limit_ms"] for cancel in table.cancels()] == [15_000]
    assert table.is_pending(second)


def test_an_eval_that_waits_past_its_time_limit_never_runs_and_the_next_one_does(table: CoreHarness) -> None:
    running = table.eval()
    impatient = table.eval(timeout_ms=1000)
    patient = table.eval(timeout_ms=20_000)
    table.wait(1)
    assert table.final_reply(impatient) == {
        "id": impatient,
        "status": ["done", "error", "timeout"],
        "err": "eval timed out after 1000 ms in the queue and never ran",
        "eval-id": 2,
        "epoch": 1,
        "state": "kept",
        "hint": "another eval of the session, or the limit of concurrent evals, held it up",
        "max-eval-time-ms": 1000,
    }
    table.finish(running)
    assert table.running_evals(impatient, patient) == [patient]
    table.finish(patient)
    assert table.is_idle()


def test_the_first_in_line_at_the_gate_that_times_out_lets_its_successor_up(
    new_table: Callable[..., CoreHarness],
) -> None:
    table = new_table(max_concurrent_evals=1)
    running = table.eval("other")
    impatient, patient = table.eval(timeout_ms=1000), table.eval()
    table.wait(1)
    assert not table.is_pending(impatient)
    table.finish(running)
    assert table.running_evals(patient) == [patient]


def test_a_wait_for_a_turn_is_bounded(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_queue_wait_ms=3000)
    table.eval(wait_ms=0)
    queued = table.eval()
    detached = table.eval(wait_ms=1000, timeout_ms=1000)  # its time limit is for running, not for waiting
    table.wait(3)
    assert table.final_reply(queued)["max-eval-time-ms"] == 3000
    assert table.final_reply(detached)["status"] == ["done", "running"]
    assert [job["state"] for job in table.request("jobs", session="work")["jobs"]] == ["running", "done", "done"]


def test_a_throw_away_session_goes_with_an_eval_that_never_ran(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    table.eval()
    asked = table.eval(None, timeout_ms=1000)
    assert len(table.state.sessions) == 2
    table.wait(1)
    answer = table.final_reply(asked)
    assert (answer["status"], answer["ephemeral"]) == (["done", "error", "timeout"], True)
    assert [session.name for session in table.state.sessions] == ["work"]


def test_a_throw_away_session_goes_with_an_eval_that_is_killed(table: CoreHarness) -> None:
    asked = table.eval(None, timeout_ms=1000)
    table.wait(3)
    assert table.final_reply(asked)["state"] == "lost"
    assert len(table.state.sessions) == 0
    assert table.is_idle()


def test_an_answer_that_comes_after_the_kill_is_not_heard(table: CoreHarness) -> None:
    asked = table.eval(timeout_ms=1000)
    worker = table.worker()
    table.wait(3)
    before = len(table.received)
    worker.reply(asked)
    assert len(table.received) == before
    table.final_reply(asked)


def test_no_limit_counts_the_time_in_which_the_broker_did_not_run(table: CoreHarness) -> None:
    running, waiting = table.eval(timeout_ms=2000), table.eval(timeout_ms=3000)
    later = table.eval("other", wait_ms=2500)
    table.open("idle")
    table.wait(1)
    table.now += 7200
    table.core.on_suspended(7200)
    table.apply(table.core.tick(table.now))
    table.wait(0.999)
    assert table.cancels() == []
    assert [table.is_pending(each) for each in (running, waiting, later)] == [True] * 3
    assert table.session("idle").state == "idle"
    table.wait(0.001, beats=False)
    assert [cancel["limit_ms"] for cancel in table.cancels()] == [2000]
    table.wait(1)
    assert table.final_reply(waiting)["err"] == "eval timed out after 3000 ms in the queue and never ran"
    assert table.final_reply(later)["status"] == ["done", "running"]
    assert any("the broker did not run for 7200.0 s" in note for note in table.log_lines)


def test_a_worker_is_not_silent_while_nobody_listens(table: CoreHarness) -> None:
    table.open("work")
    table.wait(50, beats=False)
    table.now += 1000
    table.core.on_suspended(1000)
    table.apply(table.core.tick(table.now))
    table.wait(9, beats=False)
    assert table.killed == []
    table.wait(20, beats=False)
    assert len(table.killed) == 1

"""Time limits: code is interrupted first and killed after the grace period; waiting is limited too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import FrameKind, Outcome


def test_code_at_its_time_limit_is_interrupted_and_keeps_its_state(harness: CoreHarness) -> None:
    asked = harness.eval(timeout_ms=2000)
    worker = harness.worker()
    harness.wait(1.999)
    assert harness.cancels() == []
    harness.wait(0.001)
    assert [cancel["limit_ms"] for cancel in harness.cancels()] == [2000]
    header = worker.frames(FrameKind.CANCEL)[0][0]
    assert (header.route, header.eval, header.epoch) == (worker.header_of(asked).route, 1, 1)
    harness.finish(asked, Outcome.TIMEOUT, status=["done", "error", "timeout"], state="kept")
    assert harness.request("jobs", session="work")["jobs"][0]["status"] == ["done", "error", "timeout"]
    assert harness.killed == []
    assert harness.session().epoch == 1
    harness.wait(100)
    harness.finish(harness.eval())
    assert harness.is_idle()


def test_code_that_ignores_the_interrupt_loses_its_worker_after_the_grace(harness: CoreHarness) -> None:
    asked = harness.eval(timeout_ms=2000)
    number = harness.worker().number
    harness.wait(3.999)
    assert harness.is_pending(asked)
    harness.wait(0.001)
    assert harness.final_reply(asked) == {
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
    assert harness.killed == [number]
    assert harness.request("jobs", session="work")["jobs"][0]["status"] == ["done", "error", "timeout"]
    assert harness.session().lost_cause is None  # the caller has been told
    harness.finish(harness.eval())
    assert harness.worker().number != number
    assert harness.worker().frames(FrameKind.ASSIGN)[0][1]["lost_cause"] is None


def test_a_worker_kills_its_interpreter_and_reports_what_was_printed_before(harness: CoreHarness) -> None:
    asked = harness.eval(timeout_ms=2000)
    worker = harness.worker()
    worker.is_reactive = False
    harness.wait(4)
    assert harness.cancels()[-1]["kill"] == "killed: it ignored the interrupt at its time limit of 2000 ms"
    assert harness.killed == []
    worker.reply(asked, Outcome.NONE, FrameKind.OUTPUT, out="the end\n")
    worker.send_interpreter_exited(harness.cancels()[-1]["kill"])
    assert harness.final_reply(asked)["state"] == "lost"
    assert harness.killed == [worker.number]


def test_a_worker_that_does_not_react_is_killed_with_its_interpreter(harness: CoreHarness) -> None:
    asked = harness.eval(timeout_ms=2000)
    worker = harness.worker()
    worker.is_reactive = False
    harness.wait(8.999)
    assert (harness.is_pending(asked), harness.killed) == (True, [])
    harness.wait(0.001)
    assert harness.final_reply(asked)["status"] == ["done", "error", "timeout"]
    assert harness.killed == [worker.number]


def test_no_grace_means_no_grace(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(interrupt_grace_ms=0)
    asked = harness.eval(timeout_ms=1000)
    harness.wait(1)
    assert harness.final_reply(asked)["state"] == "lost"


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
    new_harness: Callable[..., CoreHarness], asked_for: dict[str, int], granted: int
) -> None:
    harness = new_harness(max_eval_time_ms=5000, max_job_time_ms=60_000)
    harness.eval(**asked_for)
    harness.wait(granted - 0.001)
    assert harness.cancels() == []
    harness.wait(0.001)
    assert [cancel["limit_ms"] for cancel in harness.cancels()] == [granted * 1000]


def test_the_limit_counts_from_when_the_code_runs(harness: CoreHarness) -> None:
    first = harness.eval(timeout_ms=10_000)
    second = harness.eval(timeout_ms=15_000)
    harness.wait(9)
    harness.finish(first)
    harness.wait(14.999)
    assert harness.cancels() == []
    harness.wait(0.001)
    assert [cancel["limit_ms"] for cancel in harness.cancels()] == [15_000]
    assert harness.is_pending(second)


def test_an_eval_that_waits_past_its_time_limit_never_runs_and_the_next_one_does(harness: CoreHarness) -> None:
    running = harness.eval()
    impatient = harness.eval(timeout_ms=1000)
    patient = harness.eval(timeout_ms=20_000)
    harness.wait(1)
    assert harness.final_reply(impatient) == {
        "id": impatient,
        "status": ["done", "error", "timeout"],
        "err": "eval timed out after 1000 ms in the queue and never ran",
        "eval-id": 2,
        "epoch": 1,
        "state": "kept",
        "hint": "it waited for another eval of the session, or for a free slot",
        "max-eval-time-ms": 1000,
    }
    harness.finish(running)
    assert harness.running_evals(impatient, patient) == [patient]
    harness.finish(patient)
    assert harness.is_idle()


def test_the_first_in_line_at_the_gate_that_times_out_lets_its_successor_up(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(max_concurrent_evals=1)
    running = harness.eval("other")
    impatient, patient = harness.eval(timeout_ms=1000), harness.eval()
    harness.wait(1)
    assert not harness.is_pending(impatient)
    harness.finish(running)
    assert harness.running_evals(patient) == [patient]


def test_a_wait_for_a_turn_is_bounded(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_queue_wait_ms=3000)
    harness.eval(wait_ms=0)
    queued = harness.eval()
    detached = harness.eval(wait_ms=1000, timeout_ms=1000)  # its time limit is for running, not for waiting
    harness.wait(3)
    assert harness.final_reply(queued)["max-eval-time-ms"] == 3000
    assert harness.final_reply(detached)["status"] == ["done", "running"]
    assert [job["state"] for job in harness.request("jobs", session="work")["jobs"]] == ["running", "done", "done"]


def test_a_throw_away_session_goes_with_an_eval_that_never_ran(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    harness.eval()
    asked = harness.eval(None, timeout_ms=1000)
    assert len(harness.state.sessions) == 2
    harness.wait(1)
    answer = harness.final_reply(asked)
    assert (answer["status"], answer["ephemeral"]) == (["done", "error", "timeout"], True)
    assert [session.name for session in harness.state.sessions] == ["work"]


def test_a_throw_away_session_goes_with_an_eval_that_is_killed(harness: CoreHarness) -> None:
    asked = harness.eval(None, timeout_ms=1000)
    harness.wait(3)
    assert harness.final_reply(asked)["state"] == "lost"
    assert len(harness.state.sessions) == 0
    assert harness.is_idle()


def test_an_answer_that_comes_after_the_kill_is_not_heard(harness: CoreHarness) -> None:
    asked = harness.eval(timeout_ms=1000)
    worker = harness.worker()
    harness.wait(3)
    before = len(harness.received)
    worker.reply(asked)
    assert len(harness.received) == before
    harness.final_reply(asked)


def test_no_limit_counts_the_time_in_which_the_broker_did_not_run(harness: CoreHarness) -> None:
    running, waiting = harness.eval(timeout_ms=2000), harness.eval(timeout_ms=3000)
    later = harness.eval("other", wait_ms=2500)
    harness.open("idle")
    harness.wait(1)
    harness.now += 7200
    harness.core.on_suspended(7200)
    harness.apply(harness.core.tick(harness.now))
    harness.wait(0.999)
    assert harness.cancels() == []
    assert [harness.is_pending(each) for each in (running, waiting, later)] == [True] * 3
    assert harness.session("idle").state == "idle"
    harness.wait(0.001, beats=False)
    assert [cancel["limit_ms"] for cancel in harness.cancels()] == [2000]
    harness.wait(1)
    assert harness.final_reply(waiting)["err"] == "eval timed out after 3000 ms in the queue and never ran"
    assert harness.final_reply(later)["status"] == ["done", "running"]
    assert any("the broker did not run for 7200.0 s" in note for note in harness.log_lines)


def test_a_worker_is_not_silent_while_nobody_listens(harness: CoreHarness) -> None:
    harness.open("work")
    harness.wait(50, beats=False)
    harness.now += 1000
    harness.core.on_suspended(1000)
    harness.apply(harness.core.tick(harness.now))
    harness.wait(9, beats=False)
    assert harness.killed == []
    harness.wait(20, beats=False)
    assert len(harness.killed) == 1

"""Reset, close, and workers that die: the replies, and the notice for the next eval."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import FrameKind


def cause_of_loss(harness: CoreHarness) -> str | None:
    """Return the cause of the last worker's loss that the session's worker was given."""
    notice: str | None = harness.worker().frames(FrameKind.ASSIGN)[0][1]["lost_cause"]
    return notice


def test_a_worker_that_dies_idle_is_replaced_by_the_next_eval_which_is_told_once(harness: CoreHarness) -> None:
    harness.finish(harness.eval())
    harness.worker().exit("killed by SIGKILL")
    assert (harness.session().state, harness.session().epoch) == ("vacant", 2)
    harness.finish(harness.eval())
    assert cause_of_loss(harness) == "killed by SIGKILL"
    assert harness.session().lost_cause is None
    harness.request("reset", session="work")
    assert cause_of_loss(harness) is None


def test_the_notice_survives_a_worker_that_never_took_the_session(harness: CoreHarness) -> None:
    harness.open()
    harness.worker().exit("out of memory")
    harness.auto = False
    first = harness.eval()
    fresh = harness.workers[2]
    fresh.send_ready()
    fresh.exit("exit code 1")
    assert harness.final_reply(first)["cause"] == "exit code 1"
    harness.auto = True
    harness.finish(harness.eval())
    assert cause_of_loss(harness) == "out of memory"


def test_a_worker_that_dies_busy_ends_its_eval_and_what_was_queued(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    running, queued, other = harness.eval(), harness.eval(), harness.eval("other")
    harness.wait(2)
    harness.worker().exit("killed by SIGSEGV")
    assert harness.final_reply(running) == {
        "id": running,
        "status": ["done", "error", "worker-lost"],
        "err": "worker lost: killed by SIGSEGV",
        "eval-id": 1,
        "epoch": 2,
        "state": "lost",
        "cause": "killed by SIGSEGV",
        "duration-ms": 2000.0,
    }
    assert harness.final_reply(queued) == {
        "id": queued,
        "status": ["done", "error", "worker-lost"],
        "err": "worker lost: killed by SIGSEGV; this eval was queued and never ran",
        "eval-id": 2,
        "epoch": 2,
        "state": "lost",
        "cause": "killed by SIGSEGV",
    }
    harness.finish(other)
    harness.finish(harness.eval())
    assert cause_of_loss(harness) is None  # the two above have been told
    assert harness.is_idle()


def test_a_loss_that_nobody_waited_for_is_told_to_the_next(harness: CoreHarness) -> None:
    harness.eval(wait_ms=0)
    harness.wait(0)
    harness.worker().send_interpreter_exited("exit code 3")
    harness.finish(harness.eval())
    assert cause_of_loss(harness) == "exit code 3"


def test_an_interpreter_that_dies_takes_its_worker_along(harness: CoreHarness) -> None:
    asked = harness.eval()
    number = harness.worker().number
    harness.worker().send_interpreter_exited("killed by SIGABRT")
    assert harness.final_reply(asked)["cause"] == "killed by SIGABRT"
    assert harness.killed == [number]
    assert harness.request("stats")["stats"]["counts"]["evals.lost"] == 1


def test_requests_that_the_dead_worker_had_are_answered(harness: CoreHarness) -> None:
    harness.open()
    asked = [harness.send("stdin", session="work", input="x"), harness.send("info", session="work")]
    harness.worker().exit("killed by SIGKILL")
    for each in asked:
        answer = harness.final_reply(each)
        assert answer["status"] == ["done", "error", "worker-lost"]
        assert (answer["cause"], answer["epoch"]) == ("killed by SIGKILL", 2)
    assert harness.is_idle()


def test_a_reset_gives_a_fresh_worker_and_counts_up(harness: CoreHarness) -> None:
    opened = harness.open(cwd="/src", env=["A=1"])
    number = harness.worker().number
    answer = harness.request("reset", session="work", agent="ada")
    assert answer == {
        "id": answer["id"],
        "status": ["done"],
        "session": opened["session"],
        "name": "work",
        "epoch": 2,
        "state": "lost",
    }
    assert harness.killed == [number]
    assignment = harness.worker().frames(FrameKind.ASSIGN)[0][1]
    assert (assignment["cwd"], assignment["env"], assignment["lost_cause"]) == ("/src", ["A=1"], None)
    assert harness.request("reset", session="work")["epoch"] == 3
    harness.finish(harness.eval(expect_epoch=3))


def test_a_reset_says_what_it_ended(harness: CoreHarness) -> None:
    running, queued, waiting = harness.eval(), harness.eval(), harness.send("info", session="work")
    harness.request("reset", session="work", agent="ada")
    errs = [harness.final_reply(each)["err"] for each in (running, queued, waiting)]
    text = "session reset: reset by ada"
    assert errs == [text, f"{text}; this eval was queued and never ran", text]
    for each in (running, queued, waiting):
        assert harness.final_reply(each)["status"] == ["done", "error", "session-reset"]
        assert (harness.final_reply(each)["cause"], harness.final_reply(each)["epoch"]) == ("reset by ada", 2)
    assert harness.is_idle()
    harness.finish(harness.eval())


def test_a_reset_while_the_worker_starts_begins_anew(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    opening = harness.send("new-session", name="work")
    reset = harness.send("reset", session="work")
    assert harness.final_reply(opening)["status"] == ["done", "error", "session-reset"]
    harness.workers[1].send_ready()
    harness.workers[1].send_assigned()
    assert harness.final_reply(reset)["epoch"] == 2
    assert harness.workers[1].frames(FrameKind.ASSIGN)[0][0].epoch == 2


def test_a_reset_of_a_throw_away_session_is_its_end(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    running, waiting = harness.eval(None), harness.eval(None)
    for asked, session in ((waiting, "id-2"), (running, "id-1")):
        assert harness.request("reset", session=session)["status"] == ["done", "session-closed"]
        assert harness.final_reply(asked)["status"] == ["done", "error", "session-reset"]
    assert len(harness.state.sessions) == 0
    assert harness.is_idle()


@pytest.mark.parametrize("label", ["work", "id-1"])
def test_closing_ends_what_runs_and_what_waits_and_frees_the_name(harness: CoreHarness, label: str) -> None:
    running, queued, info = harness.eval(), harness.eval(), harness.send("info", session="work")
    number = harness.worker().number
    answer = harness.request("close", session=label, agent="ada")
    assert (answer["status"], answer["session"], answer["name"]) == (["done", "session-closed"], "id-1", "work")
    assert harness.final_reply(running)["status"] == ["done", "interrupted", "session-closed"]
    assert (harness.final_reply(running)["cause"], harness.final_reply(running)["state"]) == ("closed by ada", "lost")
    for asked in (queued, info):
        assert harness.final_reply(asked)["status"] == ["done", "error", "session-not-found"]
        assert (harness.final_reply(asked)["err"], harness.final_reply(asked)["cause"]) == (
            "Session not found: work",
            "closed by ada",
        )
    assert harness.killed == [number]
    assert harness.is_idle()
    assert harness.open()["epoch"] == 2


def test_closing_a_session_at_the_gate_gives_nobody_its_turn(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    first, second, third = (harness.eval(name) for name in ("a", "b", "c"))
    harness.request("close", session="b")
    assert not harness.is_pending(second)
    assert harness.running_evals(first, third) == [first]
    harness.finish(first)
    assert harness.running_evals(third) == [third]


def test_closing_a_busy_session_hands_its_slot_on(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    _, waiting = harness.eval("a"), harness.eval("b")
    harness.request("close", session="a")
    assert harness.running_evals(waiting) == [waiting]
    assert harness.state.semaphore.in_use == 1


def test_closing_a_session_whose_worker_starts_leaves_the_worker_to_others(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(auto=False)
    opening = harness.send("new-session", name="work")
    harness.request("close", session="work")
    assert harness.final_reply(opening)["status"] == ["done", "error", "session-not-found"]
    harness.workers[1].send_ready()
    assert harness.request("stats")["stats"]["workers"] == {"starting": 0, "warm": 1, "assigned": 0}
    other = harness.send("new-session", name="other")
    harness.workers[1].send_assigned()
    assert harness.final_reply(other)["status"] == ["done"]
    assert harness.spawned == [1]


def test_numbers_of_evals_go_on_across_epochs(harness: CoreHarness) -> None:
    harness.eval()
    harness.request("reset", session="work")
    harness.finish(harness.eval())
    jobs = harness.request("jobs", session="work")["jobs"]
    assert [(job["eval-id"], job["epoch"]) for job in jobs] == [(1, 1), (2, 2)]


def test_history_is_bounded_and_keeps_what_runs(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_history=3)
    for _ in range(5):
        harness.finish(harness.eval())
    harness.eval()
    harness.eval()
    assert [job["eval-id"] for job in harness.request("jobs", session="work")["jobs"]] == [3, 4, 5, 6, 7]
    for number in range(8, 20):
        harness.request("interrupt", session="work", interrupt_id=number - 1)
        harness.eval()
    assert [job["eval-id"] for job in harness.request("jobs", session="work")["jobs"]] == [6, 16, 17, 18, 19]

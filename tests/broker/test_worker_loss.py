"""Reset, close, and workers that die: who is told what, and what the next eval learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import FrameKind


def cause_of_loss(table: CoreHarness) -> str | None:
    """What the worker that the session has was told of the one before."""
    notice: str | None = table.worker().frames(FrameKind.ASSIGN)[0][1]["lost"]
    return notice


def test_a_worker_that_dies_idle_is_replaced_by_the_next_eval_which_is_told_once(table: CoreHarness) -> None:
    table.finish(table.eval())
    table.worker().exit("killed by SIGKILL")
    assert (table.session().state, table.session().epoch) == ("vacant", 2)
    table.finish(table.eval())
    assert cause_of_loss(table) == "killed by SIGKILL"
    assert table.session().lost_cause is None
    table.request("reset", session="work")
    assert cause_of_loss(table) is None


def test_the_notice_survives_a_worker_that_never_took_the_session(table: CoreHarness) -> None:
    table.open()
    table.worker().exit("out of memory")
    table.auto = False
    first = table.eval()
    fresh = table.workers[2]
    fresh.send_ready()
    fresh.exit("exit code 1")
    assert table.final_reply(first)["cause"] == "exit code 1"
    table.auto = True
    table.finish(table.eval())
    assert cause_of_loss(table) == "out of memory"


def test_a_worker_that_dies_busy_ends_its_eval_and_what_was_queued(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    running, queued, other = table.eval(), table.eval(), table.eval("other")
    table.wait(2)
    table.worker().exit("killed by SIGSEGV")
    assert table.final_reply(running) == {
        "id": running,
        "status": ["done", "error", "worker-lost"],
        "err": "worker lost: killed by SIGSEGV",
        "eval-id": 1,
        "epoch": 2,
        "state": "lost",
        "cause": "killed by SIGSEGV",
        "duration-ms": 2000.0,
    }
    assert table.final_reply(queued) == {
        "id": queued,
        "status": ["done", "error", "worker-lost"],
        "err": "worker lost: killed by SIGSEGV; this eval was queued and never ran",
        "eval-id": 2,
        "epoch": 2,
        "state": "lost",
        "cause": "killed by SIGSEGV",
    }
    table.finish(other)
    table.finish(table.eval())
    assert cause_of_loss(table) is None  # the two above have been told
    assert table.is_idle()


def test_a_loss_that_nobody_waited_for_is_told_to_the_next(table: CoreHarness) -> None:
    table.eval(wait_ms=0)
    table.wait(0)
    table.worker().send_interpreter_exited("exit code 3")
    table.finish(table.eval())
    assert cause_of_loss(table) == "exit code 3"


def test_an_interpreter_that_dies_takes_its_worker_along(table: CoreHarness) -> None:
    asked = table.eval()
    number = table.worker().number
    table.worker().send_interpreter_exited("killed by SIGABRT")
    assert table.final_reply(asked)["cause"] == "killed by SIGABRT"
    assert table.killed == [number]
    assert table.request("stats")["stats"]["counts"]["evals.lost"] == 1


def test_requests_that_the_dead_worker_had_are_answered(table: CoreHarness) -> None:
    table.open()
    asked = [table.send("stdin", session="work", input="x"), table.send("info", session="work")]
    table.worker().exit("killed by SIGKILL")
    for each in asked:
        answer = table.final_reply(each)
        assert answer["status"] == ["done", "error", "worker-lost"]
        assert (answer["cause"], answer["epoch"]) == ("killed by SIGKILL", 2)
    assert table.is_idle()


def test_a_reset_gives_a_fresh_worker_and_counts_up(table: CoreHarness) -> None:
    opened = table.open(cwd="/src", env=["A=1"])
    number = table.worker().number
    answer = table.request("reset", session="work", agent="ada")
    assert answer == {
        "id": answer["id"],
        "status": ["done"],
        "session": opened["session"],
        "name": "work",
        "epoch": 2,
        "state": "lost",
    }
    assert table.killed == [number]
    claim = table.worker().frames(FrameKind.ASSIGN)[0][1]
    assert (claim["cwd"], claim["env"], claim["lost"]) == ("/src", ["A=1"], None)
    assert table.request("reset", session="work")["epoch"] == 3
    table.finish(table.eval(expect_epoch=3))


def test_a_reset_says_what_it_ended(table: CoreHarness) -> None:
    running, queued, waiting = table.eval(), table.eval(), table.send("info", session="work")
    table.request("reset", session="work", agent="ada")
    errs = [table.final_reply(each)["err"] for each in (running, queued, waiting)]
    told = "session reset: reset by ada"
    assert errs == [told, f"{told}; this eval was queued and never ran", told]
    for each in (running, queued, waiting):
        assert table.final_reply(each)["status"] == ["done", "error", "session-reset"]
        assert (table.final_reply(each)["cause"], table.final_reply(each)["epoch"]) == ("reset by ada", 2)
    assert table.is_idle()
    table.finish(table.eval())


def test_a_reset_while_the_worker_starts_begins_anew(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    opening = table.send("new-session", name="work")
    reset = table.send("reset", session="work")
    assert table.final_reply(opening)["status"] == ["done", "error", "session-reset"]
    table.workers[1].send_ready()
    table.workers[1].send_assigned()
    assert table.final_reply(reset)["epoch"] == 2
    assert table.workers[1].frames(FrameKind.ASSIGN)[0][0].epoch == 2


def test_a_reset_of_a_throw_away_session_is_its_end(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    running, waiting = table.eval(None), table.eval(None)
    for asked, session in ((waiting, "id-2"), (running, "id-1")):
        assert table.request("reset", session=session)["status"] == ["done", "session-closed"]
        assert table.final_reply(asked)["status"] == ["done", "error", "session-reset"]
    assert len(table.state.sessions) == 0
    assert table.is_idle()


@pytest.mark.parametrize("label", ["work", "id-1"])
def test_closing_ends_what_runs_and_what_waits_and_frees_the_name(table: CoreHarness, label: str) -> None:
    running, queued, info = table.eval(), table.eval(), table.send("info", session="work")
    number = table.worker().number
    answer = table.request("close", session=label, agent="ada")
    assert (answer["status"], answer["session"], answer["name"]) == (["done", "session-closed"], "id-1", "work")
    assert table.final_reply(running)["status"] == ["done", "interrupted", "session-closed"]
    assert (table.final_reply(running)["cause"], table.final_reply(running)["state"]) == ("closed by ada", "lost")
    for asked in (queued, info):
        assert table.final_reply(asked)["status"] == ["done", "error", "session-not-found"]
        assert (table.final_reply(asked)["err"], table.final_reply(asked)["cause"]) == (
            "Session not found: work",
            "closed by ada",
        )
    assert table.killed == [number]
    assert table.is_idle()
    assert table.open()["epoch"] == 2


def test_closing_a_session_at_the_gate_gives_nobody_its_turn(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    first, second, third = (table.eval(name) for name in ("a", "b", "c"))
    table.request("close", session="b")
    assert not table.is_pending(second)
    assert table.running_evals(first, third) == [first]
    table.finish(first)
    assert table.running_evals(third) == [third]


def test_closing_a_busy_session_hands_its_slot_on(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_concurrent_evals=1)
    _, waiting = table.eval("a"), table.eval("b")
    table.request("close", session="a")
    assert table.running_evals(waiting) == [waiting]
    assert table.state.semaphore.in_use == 1


def test_closing_a_session_whose_worker_starts_leaves_the_worker_to_others(
    new_table: Callable[..., CoreHarness],
) -> None:
    table = new_table(auto=False)
    opening = table.send("new-session", name="work")
    table.request("close", session="work")
    assert table.final_reply(opening)["status"] == ["done", "error", "session-not-found"]
    table.workers[1].send_ready()
    assert table.request("stats")["stats"]["workers"] == {"starting": 0, "warm": 1, "claimed": 0}
    other = table.send("new-session", name="other")
    table.workers[1].send_assigned()
    assert table.final_reply(other)["status"] == ["done"]
    assert table.spawned == [1]


def test_numbers_of_evals_go_on_across_epochs(table: CoreHarness) -> None:
    table.eval()
    table.request("reset", session="work")
    table.finish(table.eval())
    jobs = table.request("jobs", session="work")["jobs"]
    assert [(job["eval-id"], job["epoch"]) for job in jobs] == [(1, 1), (2, 2)]


def test_history_is_bounded_and_keeps_what_runs(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(max_history=3)
    for _ in range(5):
        table.finish(table.eval())
    table.eval()
    table.eval()
    assert [job["eval-id"] for job in table.request("jobs", session="work")["jobs"]] == [3, 4, 5, 6, 7]
    for number in range(8, 20):
        table.request("interrupt", session="work", interrupt_id=number - 1)
        table.eval()
    assert [job["eval-id"] for job in table.request("jobs", session="work")["jobs"]] == [6, 16, 17, 18, 19]

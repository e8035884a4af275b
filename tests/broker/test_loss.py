"""Reset, close, and workers that die: who is told what, and what the next eval learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_kit import Table
from replwire.link import Kind


def lost_notice(table: Table) -> str | None:
    """What the worker that the session has was told of the one before."""
    notice: str | None = table.worker().heard(Kind.CLAIM)[0][1]["lost"]
    return notice


def test_a_worker_that_dies_idle_is_replaced_by_the_next_eval_which_is_told_once(table: Table) -> None:
    table.finish(table.eval())
    table.worker().dies("killed by SIGKILL")
    assert (table.session().state, table.session().epoch) == ("vacant", 2)
    table.finish(table.eval())
    assert lost_notice(table) == "killed by SIGKILL"
    assert table.session().lost is None
    table.said("reset", session="work")
    assert lost_notice(table) is None


def test_the_notice_survives_a_worker_that_never_took_the_session(table: Table) -> None:
    table.open()
    table.worker().dies("out of memory")
    table.auto = False
    first = table.eval()
    fresh = table.workers[2]
    fresh.ready()
    fresh.dies("exit code 1")
    assert table.end(first)["cause"] == "exit code 1"
    table.auto = True
    table.finish(table.eval())
    assert lost_notice(table) == "out of memory"


def test_a_worker_that_dies_busy_ends_its_eval_and_what_was_queued(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=1)
    running, queued, other = table.eval(), table.eval(), table.eval("other")
    table.wait(2)
    table.worker().dies("killed by SIGSEGV")
    assert table.end(running) == {
        "id": running,
        "status": ["done", "error", "worker-lost"],
        "err": "worker lost: killed by SIGSEGV",
        "eval-id": 1,
        "epoch": 2,
        "state": "lost",
        "cause": "killed by SIGSEGV",
        "duration-ms": 2000.0,
    }
    assert table.end(queued) == {
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
    assert lost_notice(table) is None  # the two above have been told
    assert table.quiet()


def test_a_loss_that_nobody_waited_for_is_told_to_the_next(table: Table) -> None:
    table.eval(wait_ms=0)
    table.wait(0)
    table.worker().gone("exit code 3")
    table.finish(table.eval())
    assert lost_notice(table) == "exit code 3"


def test_an_interpreter_that_dies_takes_its_worker_along(table: Table) -> None:
    asked = table.eval()
    number = table.worker().number
    table.worker().gone("killed by SIGABRT")
    assert table.end(asked)["cause"] == "killed by SIGABRT"
    assert table.killed == [number]
    assert table.said("stats")["stats"]["counts"]["evals.lost"] == 1


def test_requests_that_the_dead_worker_had_are_answered(table: Table) -> None:
    table.open()
    asked = [table.ask("stdin", session="work", input="x"), table.ask("info", session="work")]
    table.worker().dies("killed by SIGKILL")
    for each in asked:
        answer = table.end(each)
        assert answer["status"] == ["done", "error", "worker-lost"]
        assert (answer["cause"], answer["epoch"]) == ("killed by SIGKILL", 2)
    assert table.quiet()


def test_a_reset_gives_a_fresh_worker_and_counts_up(table: Table) -> None:
    opened = table.open(cwd="/src", env=["A=1"])
    number = table.worker().number
    answer = table.said("reset", session="work", agent="ada")
    assert answer == {
        "id": answer["id"],
        "status": ["done"],
        "session": opened["session"],
        "name": "work",
        "epoch": 2,
        "state": "lost",
    }
    assert table.killed == [number]
    claim = table.worker().heard(Kind.CLAIM)[0][1]
    assert (claim["cwd"], claim["env"], claim["lost"]) == ("/src", ["A=1"], None)
    assert table.said("reset", session="work")["epoch"] == 3
    table.finish(table.eval(expect_epoch=3))


def test_a_reset_says_what_it_ended(table: Table) -> None:
    running, queued, waiting = table.eval(), table.eval(), table.ask("info", session="work")
    table.said("reset", session="work", agent="ada")
    errs = [table.end(each)["err"] for each in (running, queued, waiting)]
    told = "session reset: reset by ada"
    assert errs == [told, f"{told}; this eval was queued and never ran", told]
    for each in (running, queued, waiting):
        assert table.end(each)["status"] == ["done", "error", "session-reset"]
        assert (table.end(each)["cause"], table.end(each)["epoch"]) == ("reset by ada", 2)
    assert table.quiet()
    table.finish(table.eval())


def test_a_reset_while_the_worker_starts_begins_anew(new_table: Callable[..., Table]) -> None:
    table = new_table(auto=False)
    opening = table.ask("new-session", name="work")
    reset = table.ask("reset", session="work")
    assert table.end(opening)["status"] == ["done", "error", "session-reset"]
    table.workers[1].ready()
    table.workers[1].claimed()
    assert table.end(reset)["epoch"] == 2
    assert table.workers[1].heard(Kind.CLAIM)[0][0].epoch == 2


def test_a_reset_of_a_throw_away_session_is_its_end(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=1)
    running, waiting = table.eval(None), table.eval(None)
    for asked, session in ((waiting, "id-2"), (running, "id-1")):
        assert table.said("reset", session=session)["status"] == ["done", "session-closed"]
        assert table.end(asked)["status"] == ["done", "error", "session-reset"]
    assert len(table.state.sessions) == 0
    assert table.quiet()


@pytest.mark.parametrize("label", ["work", "id-1"])
def test_closing_ends_what_runs_and_what_waits_and_frees_the_name(table: Table, label: str) -> None:
    running, queued, info = table.eval(), table.eval(), table.ask("info", session="work")
    number = table.worker().number
    answer = table.said("close", session=label, agent="ada")
    assert (answer["status"], answer["session"], answer["name"]) == (["done", "session-closed"], "id-1", "work")
    assert table.end(running)["status"] == ["done", "interrupted", "session-closed"]
    assert (table.end(running)["cause"], table.end(running)["state"]) == ("closed by ada", "lost")
    for asked in (queued, info):
        assert table.end(asked)["status"] == ["done", "error", "session-not-found"]
        assert (table.end(asked)["err"], table.end(asked)["cause"]) == ("Session not found: work", "closed by ada")
    assert table.killed == [number]
    assert table.quiet()
    assert table.open()["epoch"] == 2


def test_closing_a_session_at_the_gate_gives_nobody_its_turn(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=1)
    first, second, third = (table.eval(name) for name in ("a", "b", "c"))
    table.said("close", session="b")
    assert not table.pending(second)
    assert table.running(first, third) == [first]
    table.finish(first)
    assert table.running(third) == [third]


def test_closing_a_busy_session_hands_its_slot_on(new_table: Callable[..., Table]) -> None:
    table = new_table(max_concurrent_evals=1)
    _, waiting = table.eval("a"), table.eval("b")
    table.said("close", session="a")
    assert table.running(waiting) == [waiting]
    assert table.state.gate.taken == 1


def test_closing_a_session_whose_worker_starts_leaves_the_worker_to_others(new_table: Callable[..., Table]) -> None:
    table = new_table(auto=False)
    opening = table.ask("new-session", name="work")
    table.said("close", session="work")
    assert table.end(opening)["status"] == ["done", "error", "session-not-found"]
    table.workers[1].ready()
    assert table.said("stats")["stats"]["workers"] == {"starting": 0, "warm": 1, "claimed": 0}
    other = table.ask("new-session", name="other")
    table.workers[1].claimed()
    assert table.end(other)["status"] == ["done"]
    assert table.spawned == [1]


def test_numbers_of_evals_go_on_across_epochs(table: Table) -> None:
    table.eval()
    table.said("reset", session="work")
    table.finish(table.eval())
    jobs = table.said("jobs", session="work")["jobs"]
    assert [(job["eval-id"], job["epoch"]) for job in jobs] == [(1, 1), (2, 2)]


def test_history_is_bounded_and_keeps_what_runs(new_table: Callable[..., Table]) -> None:
    table = new_table(max_history=3)
    for _ in range(5):
        table.finish(table.eval())
    table.eval()
    table.eval()
    assert [job["eval-id"] for job in table.said("jobs", session="work")["jobs"]] == [3, 4, 5, 6, 7]
    for number in range(8, 20):
        table.said("interrupt", session="work", interrupt_id=number - 1)
        table.eval()
    assert [job["eval-id"] for job in table.said("jobs", session="work")["jobs"]] == [6, 16, 17, 18, 19]

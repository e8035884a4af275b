"""Workers that never start, and sessions that cannot be set up: every client is answered, nothing is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replbroker.core.records import SessionRecord


@pytest.fixture
def slow(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    """A harness whose workers do nothing by themselves."""
    return new_harness(auto=False, worker_start_ms=5000)


def test_a_directory_that_is_not_there_leaves_no_session(slow: CoreHarness) -> None:
    opening = slow.send("new-session", name="work", cwd="/nowhere")
    slow.workers[1].send_ready()
    slow.workers[1].send_assigned("cwd: no such directory: /nowhere")
    answer = slow.final_reply(opening)
    assert answer["status"] == ["done", "error", "invalid-request"]
    assert answer["err"] == "session work: cwd: no such directory: /nowhere"
    assert len(slow.state.sessions) == 0
    assert (slow.killed, slow.workers) == ([1], {})
    assert [each.open for each in slow.saved if isinstance(each, SessionRecord)] == [True, False]
    assert slow.is_idle()


def test_every_eval_of_a_session_that_could_not_be_set_up_is_told_why(slow: CoreHarness) -> None:
    running, queued, info = slow.eval(cwd="/nowhere"), slow.eval(), slow.send("info", session="work")
    stdin = slow.send("stdin", session="work", input="x")
    assert not slow.is_pending(info)  # what the broker knows needs no worker
    slow.workers[1].send_ready()
    slow.workers[1].send_assigned("no such directory")
    for asked in (running, queued, stdin):
        assert slow.final_reply(asked)["status"] == ["done", "error", "invalid-request"]
        assert slow.final_reply(asked)["cause"] == "no such directory"
    assert [slow.final_reply(asked)["state"] for asked in (running, queued)] == ["lost", "lost"]
    assert slow.final_reply(queued)["err"] == "session work: no such directory; this eval was queued and never ran"
    assert slow.request("jobs", session="work")["cause"] == "never started: no such directory"
    assert slow.is_idle()


def test_a_throw_away_session_that_cannot_be_set_up_goes(slow: CoreHarness) -> None:
    asked = slow.eval(None, cwd="/nowhere")
    slow.workers[1].send_ready()
    slow.workers[1].send_assigned("no such directory")
    assert slow.final_reply(asked)["ephemeral"] is True
    assert len(slow.state.sessions) == 0
    assert slow.is_idle()


def test_a_session_that_lived_before_outlives_a_worker_that_cannot_take_it(slow: CoreHarness) -> None:
    slow.auto = True
    slow.open()
    slow.worker().exit()
    slow.auto = False
    first, second = slow.eval(), slow.eval()
    slow.workers[2].send_ready()
    slow.workers[2].send_assigned("the directory is gone")
    assert slow.final_reply(first)["err"] == "session work: the directory is gone"
    slow.workers[3].send_ready()  # the next eval gets its own try
    slow.workers[3].send_assigned()
    slow.finish(second)
    assert slow.session().state == "idle"


def test_a_worker_that_never_becomes_ready_is_killed_and_another_is_tried(slow: CoreHarness) -> None:
    opening = slow.send("new-session", name="work")
    slow.wait(4.999)
    assert slow.killed == []
    slow.wait(0.001)
    assert slow.killed == [1]
    answer = slow.final_reply(opening)
    assert answer["status"] == ["done", "error", "worker-lost"]
    assert answer["err"] == "session work: no worker was ready within 5000 ms"
    assert answer["retry-after-ms"] == 1000
    assert len(slow.state.sessions) == 0
    assert slow.is_idle()


def test_a_worker_that_takes_too_long_over_its_session_is_killed(slow: CoreHarness) -> None:
    opening = slow.send("new-session", name="work")
    slow.workers[1].send_ready()
    slow.wait(5)
    assert slow.final_reply(opening)["status"] == ["done", "error", "worker-lost"]
    assert slow.workers == {}
    assert slow.killed == [1]


def test_after_three_starts_that_fail_everyone_who_waits_is_told(slow: CoreHarness) -> None:
    opening = slow.send("new-session", name="work")
    asked = [slow.eval("other"), slow.eval("other"), slow.eval(None)]
    for number in (1, 2):
        slow.workers[number].exit(f"exit code {number}")
        assert all(slow.is_pending(each) for each in (opening, *asked))
    slow.workers[3].exit("exit code 3")
    for each in (opening, *asked):
        assert slow.final_reply(each)["status"] == ["done", "error", "worker-lost"]
        assert slow.final_reply(each)["cause"] == "no worker could be started: exit code 3"
    assert len(slow.state.sessions) == 0
    assert slow.is_idle()


def test_whoever_asks_after_that_gets_a_try_and_success_forgets_the_past(slow: CoreHarness) -> None:
    slow.send("new-session", name="work")
    for number in (1, 2, 3):
        slow.workers[number].exit("exit code 1")
    assert slow.workers == {}
    opening = slow.send("new-session", name="work")
    slow.workers[4].exit("exit code 4")
    assert slow.final_reply(opening)["cause"] == "no worker could be started: exit code 4"
    opening = slow.send("new-session", name="work")
    slow.workers[5].send_ready()
    slow.workers[5].send_assigned()
    assert slow.final_reply(opening)["status"] == ["done"]
    opening = slow.send("new-session", name="more")
    slow.workers[6].exit()
    slow.workers[7].exit()
    assert slow.is_pending(opening)


def test_those_who_come_up_when_the_starts_failed_are_tried_for(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    harness.open("a")
    harness.open("b")
    harness.worker("a").exit()
    harness.worker("b").exit()
    harness.auto = False
    first, second = harness.eval("a"), harness.eval("b")
    for _ in range(3):
        harness.workers[harness.spawned[-1]].exit("exit code 1")
    assert harness.final_reply(first)["cause"] == "no worker could be started: exit code 1"
    assert harness.is_pending(second)
    worker = harness.workers[harness.spawned[-1]]
    worker.send_ready()
    worker.send_assigned()
    harness.finish(second)


def test_a_worker_that_dies_while_it_takes_the_session_is_told(slow: CoreHarness) -> None:
    opening = slow.send("new-session", name="work")
    slow.workers[1].send_ready()
    slow.workers[1].exit("killed by SIGKILL")
    assert slow.final_reply(opening)["err"] == "session work: killed by SIGKILL"
    assert len(slow.state.sessions) == 0


def test_an_eval_waits_for_its_worker_without_losing_its_time(slow: CoreHarness) -> None:
    asked = slow.eval(timeout_ms=1000)
    slow.wait(4)
    worker = slow.workers[1]
    worker.send_ready()
    worker.send_assigned()
    slow.wait(0.999)
    assert slow.cancels() == []
    slow.finish(asked)

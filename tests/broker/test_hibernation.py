"""Hibernation: a session's variables are stored, its worker ends, and the next eval brings them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness
from replbroker.core.sessions.session import BUSY, HIBERNATED, IDLE
from replwire import events
from replwire.link import FrameKind, Outcome

New = Callable[..., CoreHarness]
FILE = "/stored/1"


def hibernate(harness: CoreHarness, name: str = "work", path: str = FILE, **fields: Any) -> dict[str, Any]:
    asked = harness.send("hibernate", session=name)
    harness.worker(name).send_snapshot(asked, path, **fields)
    return harness.final_reply(asked)


def test_a_hibernated_session_has_no_worker_and_says_what_is_stored(harness: CoreHarness) -> None:
    harness.finish(harness.eval("work"))
    reply = hibernate(harness, left=["lock"])
    assert (reply["status"], reply["count"], reply["bytes"], reply["epoch"]) == (["done"], 2, 10, 2)
    assert [each["name"] for each in reply["skipped"]] == ["lock"]
    assert (harness.session().state, harness.workers, harness.discarded) == (HIBERNATED, {}, [])
    (entry,) = harness.request("ls-sessions")["sessions"]
    assert (entry["state"], entry["hibernated"]["count"]) == ("hibernated", 2)
    info = harness.request("info", session="work")["info"]
    assert (info["state"], info["hibernated"]["bytes"], info["pid"]) == ("hibernated", 10, None)
    event = next(each for each in harness.events if isinstance(each, events.SessionHibernated))
    assert (event.epoch, event.count, event.skipped) == (2, 2, ["lock"])
    assert harness.state.emitter.metrics.hibernations == 1
    assert harness.request("hibernate", session="work")["count"] == 2


def test_the_next_eval_brings_it_back(harness: CoreHarness) -> None:
    hibernate_open(harness)
    running = harness.eval("work")
    ((_, assigned),) = harness.worker().frames(FrameKind.ASSIGN)
    assert assigned["hibernated"]["path"] == FILE
    assert harness.discarded == [FILE]
    assert harness.session().hibernated is None
    assert harness.finish(running)["epoch"] == 2
    event = next(each for each in harness.events if isinstance(each, events.SessionResumed))
    assert event.epoch == 2


def hibernate_open(harness: CoreHarness) -> None:
    harness.finish(harness.eval("work"))
    hibernate(harness)


def test_evals_that_wait_behind_it_run_in_the_worker_that_has_the_variables_again(harness: CoreHarness) -> None:
    running = harness.eval("work")
    asked = harness.send("hibernate", session="work")
    waiting = harness.eval("work")
    harness.finish(running)
    harness.worker().send_snapshot(asked, FILE)
    assert harness.final_reply(asked)["status"] == ["done"]
    assert (harness.session().state, harness.spawned) == (BUSY, [1, 2])
    assert harness.finish(waiting)["worker"] == 2


def test_a_session_that_cannot_be_stored_goes_on(harness: CoreHarness) -> None:
    harness.finish(harness.eval("work"))
    asked = harness.send("hibernate", session="work")
    harness.worker().reply(asked, Outcome.ERROR, status=["done", "error", "snapshot-failed"])
    assert (harness.session().state, harness.spawned) == (IDLE, [1])


def test_what_was_stored_is_kept_when_it_cannot_be_brought_back_now(new_harness: New) -> None:
    harness = new_harness()
    hibernate_open(harness)
    harness.auto = False
    failed = harness.eval("work")
    harness.workers[2].send_ready()
    harness.workers[2].send_assigned("no memory is left")
    reply = harness.final_reply(failed)
    assert (reply["status"][-1], reply["state"]) == ("snapshot-failed", "kept")
    assert (harness.session().state, harness.discarded) == (HIBERNATED, [])
    harness.auto = True
    assert harness.finish(harness.eval("work"))["status"] == ["done"]


@pytest.mark.parametrize("op", ["reset", "close"])
def test_an_end_deletes_what_was_stored(harness: CoreHarness, op: str) -> None:
    hibernate_open(harness)
    assert "done" in harness.request(op, session="work")["status"]
    assert harness.discarded == [FILE]


def test_it_outlives_broker_and_host(harness: CoreHarness) -> None:
    hibernate_open(harness)
    for _ in range(2):
        assert harness.restart() == []
        assert (harness.session().state, harness.core.stored_files()) == (HIBERNATED, {FILE})
    assert harness.discarded == []
    assert harness.finish(harness.eval("work"))["epoch"] == 2


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_broker_that_is_killed_meanwhile_loses_nothing(harness: CoreHarness, cut: int) -> None:
    """Cut 0: the record of it was not written; 1: the worker still lives."""
    harness.finish(harness.eval("work"))
    asked = harness.send("hibernate", session="work")
    harness.effects_left = cut
    harness.worker().send_snapshot(asked, FILE)
    assert harness.restart() == []
    assert harness.session().state == (IDLE if cut == 0 else HIBERNATED)
    assert harness.discarded == []
    assert harness.finish(harness.eval("work"))["status"] == ["done"]
    assert len(harness.processes) == 1


def test_results_of_evals_before_it_are_gone_and_said_to_be(harness: CoreHarness) -> None:
    hibernate_open(harness)
    asleep = harness.request("read", session="work", eval_id=1)
    assert (asleep["status"][-1], harness.session().state) == ("eval-not-found", HIBERNATED)
    harness.finish(harness.eval("work"))
    assert harness.request("read", session="work", eval_id=1)["status"][-1] == "eval-not-found"


def test_some_sessions_are_not_hibernated(new_harness: New) -> None:
    harness = new_harness(checkpoints=True)
    harness.open("work")
    asked = harness.send("branch", session="work", name="try")
    harness.worker().send_branched(asked)
    for name in ("work", "try"):
        assert "branches" in harness.request("hibernate", session=name)["err"]
    assert harness.request("hibernate", session="none")["status"][-1] == "session-not-found"
    assert harness.request("hibernate", session="work", wait_ms=1)["status"][-1] == "invalid-request"


def test_a_hibernated_session_is_not_given_away(harness: CoreHarness) -> None:
    hibernate_open(harness)
    refused = harness.request("transfer", session="work", who="uid:7")
    assert (refused["status"][-1], "hibernated" in refused["err"]) == ("not-supported", True)


# --- by itself ---


@pytest.fixture
def sleepy(new_harness: New) -> CoreHarness:
    """A core that hibernates a session after ten seconds, and closes it after a minute."""
    return new_harness(hibernate_after_ms=10_000, session_idle_timeout_ms=60_000, audit=True)


def hibernation_of(harness: CoreHarness) -> str | None:
    """Return the id of the request with which the broker hibernates the session, if it does."""
    asks = [body["id"] for _, body in harness.worker().frames(FrameKind.REQUEST) if body["op"] == "hibernate"]
    return asks[-1] if asks else None


def test_an_idle_session_is_hibernated_and_closed_when_its_time_is_over(sleepy: CoreHarness) -> None:
    sleepy.finish(sleepy.eval("work"))
    sleepy.wait(9)
    assert hibernation_of(sleepy) is None
    sleepy.wait(4)
    asked = hibernation_of(sleepy)
    assert asked is not None
    sleepy.worker().send_snapshot(asked, FILE)
    assert sleepy.session().state == HIBERNATED
    assert [each.op for each in sleepy.audited if each.identity == "broker"] == ["hibernate"]
    sleepy.wait(40)
    assert sleepy.session().state == HIBERNATED
    sleepy.wait(20)
    assert len(sleepy.state.sessions) == 0
    assert sleepy.discarded == [FILE]


def test_a_failed_attempt_is_not_repeated_until_the_session_was_used(sleepy: CoreHarness) -> None:
    sleepy.finish(sleepy.eval("work"))
    sleepy.wait(13)
    sleepy.worker().reply(hibernation_of(sleepy) or "", Outcome.ERROR, status=["done", "error", "snapshot-failed"])
    sleepy.wait(20)
    asks = [body["op"] for _, body in sleepy.worker().frames(FrameKind.REQUEST)]
    assert asks == ["eval", "hibernate"]
    sleepy.finish(sleepy.eval("work"))
    sleepy.wait(13)
    assert len(sleepy.worker().frames(FrameKind.REQUEST)) == 4


def test_a_session_with_a_result_that_nobody_has_got_stays(sleepy: CoreHarness) -> None:
    asked = sleepy.eval("work", wait_ms=0)
    sleepy.wait(1)
    sleepy.finish_abandoned(asked)
    sleepy.wait(13)
    assert hibernation_of(sleepy) is None
    read = sleepy.send("read", session="work", eval_id=1)
    sleepy.worker().reply(read)
    sleepy.wait(13)
    assert hibernation_of(sleepy) is not None


def test_a_session_that_is_used_is_not_hibernated(sleepy: CoreHarness) -> None:
    running = sleepy.eval("work")
    sleepy.wait(30)
    assert hibernation_of(sleepy) is None
    sleepy.finish(running)

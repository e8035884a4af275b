"""Clones: the source writes a snapshot in its turn, the new session begins with it, and the file is deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import AssignedBody, FrameKind, Outcome
from replwire.replies import SkippedName


def test_a_clone_begins_with_what_its_source_wrote_down(harness: CoreHarness) -> None:
    harness.open("work", cwd="/src", env=["A=1"])
    asked = harness.send("clone", session="work", name="copy")
    harness.worker("work").send_snapshot(asked, "/shelf/7", count=3, left=["sock"])
    answer = harness.final_reply(asked)
    copy = harness.session("copy")
    assert (answer["new-session"], answer["session"], answer["name"]) == (copy.id, copy.id, "copy")
    assert (answer["count"], answer["bytes"]) == (3, 10)
    assert answer["skipped"] == [{"name": "sock", "why": "no"}]
    assignment = harness.worker("copy").frames(FrameKind.ASSIGN)[0][1]
    assert (assignment["restore"]["path"], assignment["cwd"], assignment["env"]) == ("/shelf/7", "/src", ["A=1"])
    assert harness.discarded == ["/shelf/7"]
    assert harness.is_idle()


def test_what_the_new_session_cannot_take_is_left_behind_as_well(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    opening = harness.send("new-session", name="work")
    harness.workers[1].send_ready()
    harness.workers[1].send_assigned()
    assert harness.final_reply(opening)["created"] is True
    asked = harness.send("clone", source="work", name="copy")
    harness.workers[1].send_snapshot(asked, count=3, left=["a"])
    harness.workers[2].send_ready()
    harness.workers[2].send(
        FrameKind.ASSIGNED, AssignedBody(None, None, [SkippedName("b", "module missing")], restored=2), epoch=1
    )
    answer = harness.final_reply(asked)
    assert [each["name"] for each in answer["skipped"]] == ["a", "b"]
    assert answer["count"] == 2


def test_a_clone_waits_for_the_running_eval_of_its_source(harness: CoreHarness) -> None:
    running = harness.eval()
    asked = harness.send("clone", session="work", name="copy")
    assert harness.running_evals(running, asked) == [running]
    harness.finish(running)
    assert harness.running_evals(asked) == [asked]
    harness.worker("work").send_snapshot(asked)
    assert harness.final_reply(asked)["name"] == "copy"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": "copy"}, "invalid-request"),
        ({"session": "work"}, "invalid-request"),
        ({"session": "gone", "name": "copy"}, "session-not-found"),
        ({"session": "work", "name": "work"}, "session-already-exists"),
        ({"session": "work", "name": "b b"}, "invalid-request"),
        ({"session": "work", "name": "copy", "type": "heavy"}, "not-supported"),
        ({"session": "work", "name": "copy", "type": "medium"}, "invalid-request"),
        ({"session": "work", "name": "copy", "wait_ms": 5}, "invalid-request"),
    ],
)
def test_a_clone_that_cannot_be_is_refused_and_opens_nothing(
    harness: CoreHarness, fields: dict[str, str], code: str
) -> None:
    harness.open("work")
    assert code in harness.request("clone", **fields)["status"]
    assert len(harness.state.sessions) == 1
    assert harness.is_idle()


def test_a_source_that_cannot_be_copied_says_so_and_there_is_no_new_session(harness: CoreHarness) -> None:
    harness.open("work")
    asked = harness.send("clone", session="work", name="copy")
    answer = harness.finish(asked, Outcome.ERROR, status=["done", "error", "clone-failed"], err="no")
    assert answer["status"][-1] == "clone-failed"
    assert not harness.state.sessions.find_all_by_name("self", "copy")
    assert harness.is_idle()


def test_a_name_that_was_taken_meanwhile_is_refused_and_the_file_goes(harness: CoreHarness) -> None:
    harness.open("work")
    asked = harness.send("clone", session="work", name="copy")
    harness.open("copy")
    harness.worker("work").send_snapshot(asked, "/shelf/9")
    assert "session-already-exists" in harness.final_reply(asked)["status"]
    assert harness.discarded == ["/shelf/9"]


def test_names_that_cannot_be_read_end_the_new_session_and_the_file_goes(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(auto=False)
    harness.send("new-session", name="work")
    harness.workers[1].send_ready()
    harness.workers[1].send_assigned()
    asked = harness.send("clone", session="work", name="copy")
    harness.workers[1].send_snapshot(asked, "/shelf/3")
    harness.workers[2].send_ready()
    harness.workers[2].send_assigned("torn")
    answer = harness.final_reply(asked)
    assert answer["status"] == ["done", "error", "clone-failed"]
    assert not harness.state.sessions.find_all_by_name("self", "copy")
    assert set(harness.discarded) == {"/shelf/3"}
    assert harness.is_idle()


def test_a_source_that_dies_while_it_writes_ends_the_clone(harness: CoreHarness) -> None:
    harness.open("work")
    asked = harness.send("clone", session="work", name="copy")
    harness.worker("work").exit()
    assert "worker-lost" in harness.final_reply(asked)["status"]
    assert harness.is_idle()


def test_a_file_that_nobody_asked_for_goes(harness: CoreHarness) -> None:
    harness.open("work")
    running = harness.eval()
    harness.worker("work").send_snapshot(running, "/shelf/5")
    assert harness.is_pending(running)
    assert harness.discarded == ["/shelf/5"]


def test_the_old_word_for_clone_answers_without_new_session(harness: CoreHarness) -> None:
    harness.open("work")
    asked = harness.send("clone-session", source="work", name="copy")
    harness.worker("work").send_snapshot(asked)
    answer = harness.final_reply(asked)
    assert "new-session" not in answer
    assert answer["session"] == harness.session("copy").id

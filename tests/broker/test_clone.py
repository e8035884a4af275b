"""A clone: its source writes its names down in its turn, the new session begins with them, the file never stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replwire.link import AssignedBody, FrameKind, Outcome
from replwire.replies import SkippedName


def test_a_clone_begins_with_what_its_source_wrote_down(table: CoreHarness) -> None:
    table.open("work", cwd="/src", env=["A=1"])
    asked = table.send("clone", session="work", name="copy")
    table.worker("work").send_snapshot(asked, "/shelf/7", count=3, left=["sock"])
    answer = table.final_reply(asked)
    copy = table.session("copy")
    assert (answer["new-session"], answer["session"], answer["name"]) == (copy.id, copy.id, "copy")
    assert (answer["count"], answer["bytes"]) == (3, 10)
    assert answer["left-behind"] == [{"name": "sock", "why": "no"}]
    claim = table.worker("copy").frames(FrameKind.ASSIGN)[0][1]
    assert (claim["restore"], claim["cwd"], claim["env"]) == ("/shelf/7", "/src", ["A=1"])
    assert table.discarded == ["/shelf/7"]
    assert table.is_idle()


def test_what_the_new_session_cannot_take_is_left_behind_as_well(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    opening = table.send("new-session", name="work")
    table.workers[1].send_ready()
    table.workers[1].send_assigned()
    assert table.final_reply(opening)["created"] is True
    asked = table.send("clone", source="work", name="copy")
    table.workers[1].send_snapshot(asked, count=3, left=["a"])
    table.workers[2].send_ready()
    table.workers[2].send(FrameKind.ASSIGNED, AssignedBody(None, None, [SkippedName("b", "module missing")]), epoch=1)
    answer = table.final_reply(asked)
    assert [each["name"] for each in answer["left-behind"]] == ["a", "b"]
    assert answer["count"] == 2


def test_a_clone_waits_for_the_running_eval_of_its_source(table: CoreHarness) -> None:
    running = table.eval()
    asked = table.send("clone", session="work", name="copy")
    assert table.running_evals(running, asked) == [running]
    table.finish(running)
    assert table.running_evals(asked) == [asked]
    table.worker("work").send_snapshot(asked)
    assert table.final_reply(asked)["name"] == "copy"


@pytest.mark.parametrize(
    ("fields", "word"),
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
    table: CoreHarness, fields: dict[str, str], word: str
) -> None:
    table.open("work")
    assert word in table.request("clone", **fields)["status"]
    assert len(table.state.sessions) == 1
    assert table.is_idle()


def test_a_source_that_cannot_be_copied_says_so_and_there_is_no_new_session(table: CoreHarness) -> None:
    table.open("work")
    asked = table.send("clone", session="work", name="copy")
    answer = table.finish(asked, Outcome.ERROR, status=["done", "error", "clone-failed"], err="no")
    assert answer["status"][-1] == "clone-failed"
    assert not table.state.sessions.find_all_by_name("self", "copy")
    assert table.is_idle()


def test_a_name_that_was_taken_meanwhile_is_refused_and_the_file_goes(table: CoreHarness) -> None:
    table.open("work")
    asked = table.send("clone", session="work", name="copy")
    table.open("copy")
    table.worker("work").send_snapshot(asked, "/shelf/9")
    assert "session-already-exists" in table.final_reply(asked)["status"]
    assert table.discarded == ["/shelf/9"]


def test_names_that_cannot_be_read_end_the_new_session_and_the_file_goes(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False)
    table.send("new-session", name="work")
    table.workers[1].send_ready()
    table.workers[1].send_assigned()
    asked = table.send("clone", session="work", name="copy")
    table.workers[1].send_snapshot(asked, "/shelf/3")
    table.workers[2].send_ready()
    table.workers[2].send_assigned("torn")
    answer = table.final_reply(asked)
    assert answer["status"] == ["done", "error", "clone-failed"]
    assert not table.state.sessions.find_all_by_name("self", "copy")
    assert set(table.discarded) == {"/shelf/3"}
    assert table.is_idle()


def test_a_source_that_dies_while_it_writes_ends_the_clone(table: CoreHarness) -> None:
    table.open("work")
    asked = table.send("clone", session="work", name="copy")
    table.worker("work").exit()
    assert "worker-lost" in table.final_reply(asked)["status"]
    assert table.is_idle()


def test_a_file_that_nobody_asked_for_goes(table: CoreHarness) -> None:
    table.open("work")
    running = table.eval()
    table.worker("work").send_snapshot(running, "/shelf/5")
    assert table.is_pending(running)
    assert table.discarded == ["/shelf/5"]


def test_the_old_word_for_clone_answers_without_new_session(table: CoreHarness) -> None:
    table.open("work")
    asked = table.send("clone-session", source="work", name="copy")
    table.worker("work").send_snapshot(asked)
    answer = table.final_reply(asked)
    assert "new-session" not in answer
    assert answer["session"] == table.session("copy").id

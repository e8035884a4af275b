"""A clone: its source writes its names down in its turn, the new session begins with them, the file never stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_kit import Table
from replwire.link import Claimed, Kind, Outcome
from replwire.replies import LeftBehind


def test_a_clone_begins_with_what_its_source_wrote_down(table: Table) -> None:
    table.open("work", cwd="/src", env=["A=1"])
    asked = table.ask("clone", session="work", name="copy")
    table.worker("work").dumped(asked, "/shelf/7", count=3, left=["sock"])
    answer = table.end(asked)
    copy = table.session("copy")
    assert (answer["new-session"], answer["session"], answer["name"]) == (copy.id, copy.id, "copy")
    assert (answer["count"], answer["bytes"]) == (3, 10)
    assert answer["left-behind"] == [{"name": "sock", "why": "no"}]
    claim = table.worker("copy").heard(Kind.CLAIM)[0][1]
    assert (claim["restore"], claim["cwd"], claim["env"]) == ("/shelf/7", "/src", ["A=1"])
    assert table.discarded == ["/shelf/7"]
    assert table.quiet()


def test_what_the_new_session_cannot_take_is_left_behind_as_well(new_table: Callable[..., Table]) -> None:
    table = new_table(auto=False)
    opening = table.ask("new-session", name="work")
    table.workers[1].ready()
    table.workers[1].claimed()
    assert table.end(opening)["created"] is True
    asked = table.ask("clone", source="work", name="copy")
    table.workers[1].dumped(asked, count=3, left=["a"])
    table.workers[2].ready()
    table.workers[2].says(Kind.CLAIMED, Claimed(None, None, [LeftBehind("b", "module missing")]), epoch=1)
    answer = table.end(asked)
    assert [each["name"] for each in answer["left-behind"]] == ["a", "b"]
    assert answer["count"] == 2


def test_a_clone_waits_for_the_running_eval_of_its_source(table: Table) -> None:
    running = table.eval()
    asked = table.ask("clone", session="work", name="copy")
    assert table.running(running, asked) == [running]
    table.finish(running)
    assert table.running(asked) == [asked]
    table.worker("work").dumped(asked)
    assert table.end(asked)["name"] == "copy"


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
def test_a_clone_that_cannot_be_is_refused_and_opens_nothing(table: Table, fields: dict[str, str], word: str) -> None:
    table.open("work")
    assert word in table.said("clone", **fields)["status"]
    assert len(table.state.sessions) == 1
    assert table.quiet()


def test_a_source_that_cannot_be_copied_says_so_and_there_is_no_new_session(table: Table) -> None:
    table.open("work")
    asked = table.ask("clone", session="work", name="copy")
    answer = table.finish(asked, Outcome.ERROR, status=["done", "error", "clone-failed"], err="no")
    assert answer["status"][-1] == "clone-failed"
    assert not table.state.sessions.all_named("self", "copy")
    assert table.quiet()


def test_a_name_that_was_taken_meanwhile_is_refused_and_the_file_goes(table: Table) -> None:
    table.open("work")
    asked = table.ask("clone", session="work", name="copy")
    table.open("copy")
    table.worker("work").dumped(asked, "/shelf/9")
    assert "session-already-exists" in table.end(asked)["status"]
    assert table.discarded == ["/shelf/9"]


def test_names_that_cannot_be_read_end_the_new_session_and_the_file_goes(new_table: Callable[..., Table]) -> None:
    table = new_table(auto=False)
    table.ask("new-session", name="work")
    table.workers[1].ready()
    table.workers[1].claimed()
    asked = table.ask("clone", session="work", name="copy")
    table.workers[1].dumped(asked, "/shelf/3")
    table.workers[2].ready()
    table.workers[2].claimed("torn")
    answer = table.end(asked)
    assert answer["status"] == ["done", "error", "clone-failed"]
    assert not table.state.sessions.all_named("self", "copy")
    assert set(table.discarded) == {"/shelf/3"}
    assert table.quiet()


def test_a_source_that_dies_while_it_writes_ends_the_clone(table: Table) -> None:
    table.open("work")
    asked = table.ask("clone", session="work", name="copy")
    table.worker("work").dies()
    assert "worker-lost" in table.end(asked)["status"]
    assert table.quiet()


def test_a_file_that_nobody_asked_for_goes(table: Table) -> None:
    table.open("work")
    running = table.eval()
    table.worker("work").dumped(running, "/shelf/5")
    assert table.pending(running)
    assert table.discarded == ["/shelf/5"]


def test_the_old_word_for_clone_answers_without_new_session(table: Table) -> None:
    table.open("work")
    asked = table.ask("clone-session", source="work", name="copy")
    table.worker("work").dumped(asked)
    answer = table.end(asked)
    assert "new-session" not in answer
    assert answer["session"] == table.session("copy").id

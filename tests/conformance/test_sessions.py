"""Sessions: names, state, list, close, and the idle sweep (scenarios 94 to 134)."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from kit import wait_until
from scenarios import scenario
from transports import ONE_SLOT, BrokerSite

Open = Callable[..., BrokerSite]
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")


def _names(wire: Any) -> list[str]:
    return sorted(entry["name"] for entry in wire.ask("ls-sessions")["sessions"])


@scenario(94)
def test_named_sessions_are_listed_and_a_running_throw_away_one_is_not(wire: Any) -> None:
    for name in ("a", "b"):
        wire.ask("new-session", name=name)
    hidden = wire.send("eval", code="input()")
    wire.until(hidden, "need-input")
    entries = wire.ask("ls-sessions")["sessions"]
    assert sorted(entry["name"] for entry in entries) == ["a", "b"]
    assert all(entry["created-at"] > 0 for entry in entries)
    assert wire.ask("interrupt", request_id=hidden).status == ["done"]
    assert wire.answer(hidden).status == ["done", "interrupted"]


@scenario(95)
def test_a_line_of_the_list_has_its_fields(wire: Any) -> None:
    """REPLy's times have no zone; these are UTC and say so."""
    wire.ask("new-session", name="s")
    entry = wire.ask("ls-sessions")["sessions"][0]
    assert UUID.match(entry["session"])
    created = datetime.fromisoformat(entry["created"])
    assert created.utcoffset() == timedelta(0)
    assert abs(created.timestamp() - entry["created-at"]) < 0.01
    assert datetime.fromisoformat(entry["last-activity"]) >= created
    assert (entry["type"], entry["eval-count"], entry["name"], entry["pid"]) == ("light", 0, "s", None)
    wire.run("1")
    assert wire.ask("ls-sessions")["sessions"][0]["eval-count"] == 1


@scenario(97)
def test_a_session_without_a_name_has_an_id(wire: Any) -> None:
    """REPLy says `"name": null`; here the key is absent."""
    answer = wire.ask("new-session")
    assert UUID.match(answer["session"])
    assert answer.get("name") is None
    assert wire.ask("eval", code="1+1", session=answer["session"]).value == "2"


@scenario(98, 107)
def test_a_session_is_the_same_by_name_and_by_id(wire: Any) -> None:
    answer = wire.ask("new-session", name="myapp")
    assert (UUID.match(answer["session"]) is not None, answer["name"]) == (True, "myapp")
    wire.ask("eval", code="x = 41", session="myapp")
    assert wire.ask("eval", code="x + 1", session=answer["session"]).value == "42"


@scenario(100, 101)
def test_reuse_gives_the_session_there_is_or_a_new_one(wire: Any) -> None:
    """A name that is taken has its own word here, with or without `if-exists`."""
    first = wire.ask("new-session", name="s", if_exists="reuse")
    assert (first.status, first["created"]) == (["done"], True)
    again = wire.ask("new-session", name="s", if_exists="reuse")
    assert (again["session"], again["created"]) == (first["session"], False)
    taken = wire.ask("new-session", name="s")
    assert taken.status == ["done", "error", "session-already-exists"]
    bogus = wire.ask("new-session", name="t", if_exists="bogus")
    assert bogus.status == ["done", "error", "invalid-request"]
    assert "if-exists" in bogus["err"]
    assert _names(wire) == ["s"]


@scenario(103)
def test_letters_digits_hyphens_and_underscores_make_a_name(wire: Any) -> None:
    names = ["alpha", "my-session", "session_1", "ABC-123", "n" * 256]
    requests = [wire.send("new-session", name=name) for name in names]
    assert [wire.answer(request)["name"] for request in requests] == names


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("bad name!", "letters, digits"),
        ("", "blank"),
        ("  ", "blank"),
        ("é", "letters"),
        ("n" * 257, "length of 256"),
        ("a\n", "letters"),
        (3, "expected"),
    ],
)
@scenario(104)
def test_a_name_that_may_not_be_is_never_just_not_found(wire: Any, name: object, why: str) -> None:
    for answer in (wire.ask("eval", code="1", session=name), wire.ask("new-session", name=name)):
        assert answer.status == ["done", "error", "invalid-request"]
        assert why in answer["err"]
    assert _names(wire) == []


@scenario(106)
def test_a_list_asked_of_a_missing_session_is_refused(wire: Any) -> None:
    answer = wire.ask("ls-sessions", session="missing")
    assert answer.status == ["done", "error", "session-not-found"]
    assert answer["hint"]


@scenario(109, 110)
def test_variables_and_functions_live_on(wire: Any) -> None:
    for code in ("a = 1", "b = 2", "c = 3", "def f(): return 42"):
        wire.run(code)
    assert wire.run("a + b + c").value == "6"
    assert wire.run("f()").value == "42"


@scenario(112)
def test_sessions_do_not_see_each_other(wire: Any) -> None:
    wire.run("x = 10", session="A")
    wire.run("x = 20", session="B")
    assert [wire.run("x", session=name).value for name in "AB"] == ["10", "20"]


@scenario(113)
def test_a_throw_away_eval_sees_no_session(wire: Any) -> None:
    wire.run("secret = 'mine'")
    assert wire.run("secret", session=None)["ex"]["type"] == "NameError"
    assert wire.run("secret").value == "'mine'"


@scenario(115, 119)
def test_close_by_name_or_id_takes_both_handles(wire: Any) -> None:
    for handle in ("name", "session"):
        made = wire.ask("new-session", name="s")
        assert wire.ask("close", session=made[handle]).status == ["done", "session-closed"]
        for handle in (made["name"], made["session"]):
            answer = wire.ask("eval", code="1", session=handle)
            assert answer.status == ["done", "error", "session-not-found"]
            assert answer["err"] == f"Session not found: {handle}"


@scenario(116)
def test_close_goes_by_session_whatever_name_says(wire: Any) -> None:
    for name in ("a", "b"):
        wire.ask("new-session", name=name)
    assert wire.ask("close", session="a", name="b")["name"] == "a"
    assert _names(wire) == ["b"]


@scenario(130, 131)
def test_idle_sessions_go_by_themselves_and_nobody_else_with_them(site: Open) -> None:
    """A running one stays, and so does a new one that took the name of one that was swept."""
    with site("limits.session-idle-timeout-ms=300").wire() as wire:
        busy = wire.send("eval", code="input()", session="busy", if_missing="create")
        wire.until(busy, "need-input")
        ids = set()
        for number in range(2):
            wire.run(f"x = {number}", session="idle")
            ids.add(wire.ask("ls-sessions", session="idle")["sessions"][1]["session"])
            wait_until(lambda: _names(wire) == ["busy"], "the idle one is swept")
            answer = wire.ask("eval", code="x", session="idle")
            assert answer.status == ["done", "error", "session-not-found"]
            assert "without an eval" in answer["cause"]
        assert len(ids) == 2
        wire.ask("stdin", session="busy", input="\n")
        assert wire.answer(busy).status == ["done"]


@scenario(133)
def test_an_eval_that_waits_for_a_slot_ends_with_its_session(site: Open) -> None:
    with site(*ONE_SLOT).wire() as wire:
        first = wire.send("eval", code="input()", session="a", if_missing="create")
        wire.until(first, "need-input")
        waits = wire.send("eval", code="1", session="b", if_missing="create")
        wire.until(waits, "queued")
        assert wire.ask("close", session="b").status == ["done", "session-closed"]
        answer = wire.answer(waits)
        assert answer.status == ["done", "error", "session-not-found"]
        assert wire.ask("stats")["stats"]["queued"]["total"] == 0
        wire.ask("stdin", session="a", input="\n")
        assert wire.answer(first).status == ["done"]
        assert wire.ask("stats")["stats"]["slots"]["taken"] == 0


@scenario(134)
def test_a_name_taken_again_is_another_session_to_old_numbers(wire: Any) -> None:
    for _ in range(2):
        wire.run("1")
    old = wire.send("eval", code="print('in', flush=True)\nwhile True: pass", session="s")
    assert next(message for message in wire.messages(old) if "out" in message)
    assert wire.ask("close", session="s").status == ["done", "session-closed"]
    assert wire.answer(old).status == ["done", "interrupted", "session-closed"]
    fresh = wire.send("eval", code="input()", session="s", if_missing="create")
    wire.until(fresh, "need-input")
    assert wire.ask("interrupt", session="s", interrupt_id=3)["interrupted"] == []
    wire.ask("stdin", session="s", input="still here\n")
    answer = wire.answer(fresh)
    assert (answer.value, answer["eval-id"]) == ("'still here'", 1)


def test_ids_are_never_given_twice(wire: Any) -> None:
    requests = [wire.send("new-session") for _ in range(5)]
    ids = {wire.answer(request)["session"] for request in requests}
    assert len({uuid.UUID(each) for each in ids}) == 5

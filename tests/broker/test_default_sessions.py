"""The default session is that of an identity and a project, or of an agent where there is no project."""

from __future__ import annotations

import pytest

from core_harness import CoreHarness
from replbroker.core.sessions.sandbox_status import SandboxStatus
from replwire.policy import Policy


def runs_in(table: CoreHarness, **fields: str) -> str:
    """The session that an eval in `default` runs in, by its id."""
    asked = table.send("eval", session="default", code="1", **{"if_missing": "create"} | fields)
    runner = table.worker_running(asked)
    assert runner is not None
    table.finish(asked)
    return next(each.id for each in table.state.sessions if each.worker == runner.number)


def test_two_projects_never_meet_by_default_and_two_clients_of_one_do(table: CoreHarness) -> None:
    a, b = runs_in(table, project="/a"), runs_in(table, project="/b")
    assert a != b
    assert runs_in(table, project="/a", peer=b"p2", agent="bob") == a  # type: ignore[arg-type]
    assert runs_in(table) not in (a, b)


def test_clients_without_a_project_have_one_for_each_agent(table: CoreHarness) -> None:
    assert runs_in(table, agent="ada") != runs_in(table, agent="bob")
    assert runs_in(table, agent="ada") == runs_in(table, agent="ada", peer=b"p2")  # type: ignore[arg-type]


def test_every_other_name_is_the_same_in_all_projects(table: CoreHarness) -> None:
    table.open("work", project="/a", agent="ada")
    assert table.request("jobs", session="work", project="/b", agent="bob")["jobs"] == []
    assert table.request("new-session", name="work", project="/b")["status"][-1] == "session-already-exists"


def test_default_sessions_are_listed_with_their_project(table: CoreHarness) -> None:
    for project in ("/a", "/b"):
        runs_in(table, project=project)
    listed = table.request("ls-sessions", project="/b")["sessions"]
    assert [(each["name"], each["project"]) for each in listed] == [("default", "/a"), ("default", "/b")]
    assert [each["ref"] for each in listed] == [listed[0]["session"], "default"]


def test_a_default_session_that_is_closed_is_that_of_its_project(table: CoreHarness) -> None:
    a, b = runs_in(table, project="/a"), runs_in(table, project="/b")
    table.request("close", session="default", project="/a")
    assert [each.id for each in table.state.sessions] == [b]
    assert table.request("jobs", session="default", project="/a")["cause"] == "closed"
    assert "cause" not in table.request("jobs", session="default", project="/c")
    assert table.request("jobs", session=a)["status"][-1] == "session-not-found"


def test_a_key_for_idempotency_is_good_for_one_project(table: CoreHarness) -> None:
    for project in ("/a", "/b"):
        runs_in(table, project=project)
    table.finish(table.send("eval", session="default", code="1", project="/a", idempotency_key="k"))
    other = table.request("eval", session="default", code="1", project="/b", idempotency_key="k")
    assert other["status"] == ["done", "error", "idempotency-conflict"]


@pytest.mark.parametrize("project", ["a", "", "./a", "/" + "a" * 4096, "/a\0b", 1])
def test_a_project_is_an_absolute_path(table: CoreHarness, project: object) -> None:
    answer = table.request("eval", session="default", code="1", if_missing="create", project=project)
    assert answer["status"] == ["done", "error", "invalid-request"]
    assert len(table.state.sessions) == 0


def first_message(table: CoreHarness, asked: str) -> dict[str, object]:
    return table.replies.get(asked, [{}])[0]


def test_the_first_answer_of_a_connection_names_session_and_directory(table: CoreHarness) -> None:
    opened = table.send("eval", session="default", code="1", if_missing="create", project="/a", cwd="/a")
    assert first_message(table, opened) == {
        "id": opened,
        "created": True,
        "session": "id-1",
        "name": "default",
        "cwd": "/a",
        "epoch": 1,
    }
    table.finish(opened)
    for peer, told in ((b"p2", True), (b"p2", False), (b"p1", False)):
        asked = table.send("eval", peer, session="default", code="1", project="/a")
        named = {"id": asked, "session": "id-1", "name": "default", "cwd": "/a"}
        assert (first_message(table, asked) == named) == told
        table.finish(asked)
    table.core.on_unreachable(b"p2", table.now)
    again = table.send("eval", b"p2", session="default", code="1", project="/a")
    assert first_message(table, again)["cwd"] == "/a"
    assert table.request("new-session", b"p3", name="default", project="/a", if_exists="reuse")["cwd"] == "/a"
    assert table.open("work", cwd="/w")["cwd"] == "/w"


def test_a_named_session_that_works_elsewhere_is_told_of_once(table: CoreHarness) -> None:
    table.open("work", cwd="/a")
    said = []
    for cwd in ("/a", "/a/src", None, "/b", "/b", "/c", "/ab"):
        asked = table.send("eval", session="work", code="1", cwd=cwd)
        said += [each["notice"] for each in table.replies.get(asked, []) if "notice" in each]
        table.finish(asked)
    assert said == ["session work works in /a, not in /b"]
    reused = table.request("new-session", b"p2", name="work", if_exists="reuse", cwd="/b")
    assert (reused["cwd"], reused["notice"]) == ("/a", "session work works in /a, not in /b")


def test_a_default_session_is_used_from_anywhere_in_its_project(table: CoreHarness) -> None:
    table.open("default", project="/a", cwd="/a")
    asked = table.send("eval", session="default", code="1", project="/a", cwd="/b")
    assert "notice" not in first_message(table, asked)


def test_what_a_session_that_is_there_was_not_opened_with_is_told(table: CoreHarness) -> None:
    table.state.config.__dict__["sandbox"] = SandboxStatus(policy=Policy())  # frozen: set by hand
    table.open("work", env=["A=1"], network="none", memory_bytes=256 << 20)
    for asked, told in (
        ({}, None),
        ({"env": ["A=1"], "network": "none", "profile": "workspace-write", "memory_bytes": 256 << 20}, None),
        ({"env": ["A=2"]}, "`env`"),
        ({"profile": "read-only", "pids": 20}, "`profile`, `pids`"),
        ({"memory_bytes": 512 << 20}, "`memory-bytes`"),
    ):
        notice = table.request("new-session", name="work", if_exists="reuse", **asked).get("notice")
        assert notice == (told and f"session work was opened otherwise: {told} count when a session is opened")

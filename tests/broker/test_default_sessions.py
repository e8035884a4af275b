"""Default sessions: one for each identity and project, or for each agent without a project."""

from __future__ import annotations

import pytest

from core_harness import CoreHarness
from replbroker.core.sessions.sandbox_status import SandboxStatus
from replwire.policy import Policy


def runs_in(harness: CoreHarness, **fields: str) -> str:
    """Return the id of the session that an eval in `default` runs in."""
    asked = harness.send("eval", session="default", code="1", **{"if_missing": "create"} | fields)
    runner = harness.worker_running(asked)
    assert runner is not None
    harness.finish(asked)
    return next(each.id for each in harness.state.sessions if each.worker == runner.number)


def test_two_projects_never_meet_by_default_and_two_clients_of_one_do(harness: CoreHarness) -> None:
    a, b = runs_in(harness, project="/a"), runs_in(harness, project="/b")
    assert a != b
    assert runs_in(harness, project="/a", peer=b"p2", agent="bob") == a  # type: ignore[arg-type]
    assert runs_in(harness) not in (a, b)


def test_clients_without_a_project_have_one_for_each_agent(harness: CoreHarness) -> None:
    assert runs_in(harness, agent="ada") != runs_in(harness, agent="bob")
    assert runs_in(harness, agent="ada") == runs_in(harness, agent="ada", peer=b"p2")  # type: ignore[arg-type]


def test_every_other_name_is_the_same_in_all_projects(harness: CoreHarness) -> None:
    harness.open("work", project="/a", agent="ada")
    assert harness.request("jobs", session="work", project="/b", agent="bob")["jobs"] == []
    assert harness.request("new-session", name="work", project="/b")["status"][-1] == "session-already-exists"


def test_default_sessions_are_listed_with_their_project(harness: CoreHarness) -> None:
    for project in ("/a", "/b"):
        runs_in(harness, project=project)
    listed = harness.request("ls-sessions", project="/b")["sessions"]
    assert [(each["name"], each["project"]) for each in listed] == [("default", "/a"), ("default", "/b")]
    assert [each["ref"] for each in listed] == [listed[0]["session"], "default"]


def test_a_default_session_that_is_closed_is_that_of_its_project(harness: CoreHarness) -> None:
    a, b = runs_in(harness, project="/a"), runs_in(harness, project="/b")
    harness.request("close", session="default", project="/a")
    assert [each.id for each in harness.state.sessions] == [b]
    assert harness.request("jobs", session="default", project="/a")["cause"] == "closed"
    assert "cause" not in harness.request("jobs", session="default", project="/c")
    assert harness.request("jobs", session=a)["status"][-1] == "session-not-found"


def test_a_key_for_idempotency_is_good_for_one_project(harness: CoreHarness) -> None:
    for project in ("/a", "/b"):
        runs_in(harness, project=project)
    harness.finish(harness.send("eval", session="default", code="1", project="/a", idempotency_key="k"))
    other = harness.request("eval", session="default", code="1", project="/b", idempotency_key="k")
    assert other["status"] == ["done", "error", "idempotency-conflict"]


@pytest.mark.parametrize("project", ["a", "", "./a", "/" + "a" * 4096, "/a\0b", 1])
def test_a_project_is_an_absolute_path(harness: CoreHarness, project: object) -> None:
    answer = harness.request("eval", session="default", code="1", if_missing="create", project=project)
    assert answer["status"] == ["done", "error", "invalid-request"]
    assert len(harness.state.sessions) == 0


def first_message(harness: CoreHarness, asked: str) -> dict[str, object]:
    return harness.replies.get(asked, [{}])[0]


def test_the_first_answer_of_a_connection_names_session_and_directory(harness: CoreHarness) -> None:
    opened = harness.send("eval", session="default", code="1", if_missing="create", project="/a", cwd="/a")
    assert first_message(harness, opened) == {
        "id": opened,
        "created": True,
        "session": "id-1",
        "name": "default",
        "cwd": "/a",
        "epoch": 1,
    }
    harness.finish(opened)
    for peer, text in ((b"p2", True), (b"p2", False), (b"p1", False)):
        asked = harness.send("eval", peer, session="default", code="1", project="/a")
        named = {"id": asked, "session": "id-1", "name": "default", "cwd": "/a"}
        assert (first_message(harness, asked) == named) == text
        harness.finish(asked)
    harness.core.on_unreachable(b"p2", harness.now)
    again = harness.send("eval", b"p2", session="default", code="1", project="/a")
    assert first_message(harness, again)["cwd"] == "/a"
    assert harness.request("new-session", b"p3", name="default", project="/a", if_exists="reuse")["cwd"] == "/a"
    assert harness.open("work", cwd="/w")["cwd"] == "/w"


def test_a_named_session_that_works_elsewhere_is_told_of_once(harness: CoreHarness) -> None:
    harness.open("work", cwd="/a")
    results = []
    for cwd in ("/a", "/a/src", None, "/b", "/b", "/c", "/ab"):
        asked = harness.send("eval", session="work", code="1", cwd=cwd)
        results += [each["notice"] for each in harness.replies.get(asked, []) if "notice" in each]
        harness.finish(asked)
    assert results == ["session work works in /a, not in /b"]
    reused = harness.request("new-session", b"p2", name="work", if_exists="reuse", cwd="/b")
    assert (reused["cwd"], reused["notice"]) == ("/a", "session work works in /a, not in /b")


def test_a_default_session_is_used_from_anywhere_in_its_project(harness: CoreHarness) -> None:
    harness.open("default", project="/a", cwd="/a")
    asked = harness.send("eval", session="default", code="1", project="/a", cwd="/b")
    assert "notice" not in first_message(harness, asked)


def test_what_a_session_that_is_there_was_not_opened_with_is_told(harness: CoreHarness) -> None:
    harness.state.config.__dict__["sandbox"] = SandboxStatus(policy=Policy())  # frozen: set by hand
    harness.open("work", env=["A=1"], network="none", memory_bytes=256 << 20)
    for asked, text in (
        ({}, None),
        ({"env": ["A=1"], "network": "none", "profile": "workspace-write", "memory_bytes": 256 << 20}, None),
        ({"env": ["A=2"]}, "`env`"),
        ({"profile": "read-only", "pids": 20}, "`profile`, `pids`"),
        ({"memory_bytes": 512 << 20}, "`memory-bytes`"),
    ):
        notice = harness.request("new-session", name="work", if_exists="reuse", **asked).get("notice")
        assert notice == (text and f"session work was opened otherwise: {text} count when a session is opened")

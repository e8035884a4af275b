"""The default session is that of an identity and a project, or of an agent where there is no project."""

from __future__ import annotations

import pytest

from broker_kit import Table


def runs_in(table: Table, **fields: str) -> str:
    """The session that an eval in `default` runs in, by its id."""
    asked = table.ask("eval", session="default", code="1", **{"if_missing": "create"} | fields)
    runner = table.runner(asked)
    assert runner is not None
    table.finish(asked)
    return next(each.id for each in table.state.sessions if each.worker == runner.number)


def test_two_projects_never_meet_by_default_and_two_clients_of_one_do(table: Table) -> None:
    a, b = runs_in(table, project="/a"), runs_in(table, project="/b")
    assert a != b
    assert runs_in(table, project="/a", peer=b"p2", agent="bob") == a  # type: ignore[arg-type]
    assert runs_in(table) not in (a, b)


def test_clients_without_a_project_have_one_for_each_agent(table: Table) -> None:
    assert runs_in(table, agent="ada") != runs_in(table, agent="bob")
    assert runs_in(table, agent="ada") == runs_in(table, agent="ada", peer=b"p2")  # type: ignore[arg-type]


def test_every_other_name_is_the_same_in_all_projects(table: Table) -> None:
    table.open("work", project="/a", agent="ada")
    assert table.said("jobs", session="work", project="/b", agent="bob")["jobs"] == []
    assert table.said("new-session", name="work", project="/b")["status"][-1] == "session-already-exists"


def test_default_sessions_are_listed_with_their_project(table: Table) -> None:
    for project in ("/a", "/b"):
        runs_in(table, project=project)
    listed = table.said("ls-sessions", project="/b")["sessions"]
    assert [(each["name"], each["project"]) for each in listed] == [("default", "/a"), ("default", "/b")]
    assert [each["ref"] for each in listed] == [listed[0]["session"], "default"]


def test_a_default_session_that_is_closed_is_that_of_its_project(table: Table) -> None:
    a, b = runs_in(table, project="/a"), runs_in(table, project="/b")
    table.said("close", session="default", project="/a")
    assert [each.id for each in table.state.sessions] == [b]
    assert table.said("jobs", session="default", project="/a")["cause"] == "closed"
    assert "cause" not in table.said("jobs", session="default", project="/c")
    assert table.said("jobs", session=a)["status"][-1] == "session-not-found"


def test_a_key_for_idempotency_is_good_for_one_project(table: Table) -> None:
    for project in ("/a", "/b"):
        runs_in(table, project=project)
    table.finish(table.ask("eval", session="default", code="1", project="/a", idempotency_key="k"))
    other = table.said("eval", session="default", code="1", project="/b", idempotency_key="k")
    assert other["status"] == ["done", "error", "idempotency-conflict"]


@pytest.mark.parametrize("project", ["a", "", "./a", "/" + "a" * 4096, "/a\0b", 1])
def test_a_project_is_an_absolute_path(table: Table, project: object) -> None:
    answer = table.said("eval", session="default", code="1", if_missing="create", project=project)
    assert answer["status"] == ["done", "error", "invalid-request"]
    assert len(table.state.sessions) == 0

"""Who may see and touch a session: its owner, those it is shared with, admins."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_kit import Table
from replwire.ops import OPS
from test_rules import FIELDS

OTHER = b"p2"


@pytest.fixture
def two(new_table: Callable[..., Table]) -> Table:
    """`work` belongs to the broker's user; p2 is somebody else."""
    table = new_table()
    table.core.meet(OTHER, "uid:1001")
    table.open("work")
    return table


@pytest.mark.parametrize(
    "op",
    [op for op, kind in OPS.items() if op not in ("describe", "hello", "ping", "stats", "shutdown", "unsubscribe")],
)
def test_a_stranger_cannot_see_or_touch_a_session(two: Table, op: str) -> None:
    fields = {"session": "work", "eval_id": 0, "to": "plan", "symbol": "a", "code": "1", "pos": 0} | FIELDS.get(op, {})
    if op == "new-session":
        fields = {"name": "work", "if_exists": "reuse"}
    elif op == "close-session":
        fields = {"name": "work"}
    answer = two.said(op, OTHER, **fields)
    assert answer["status"] == ["done", "error", "forbidden"]
    assert "belongs to somebody else" in answer["err"]
    assert "choose another" in answer["hint"]
    two.finish(two.eval())


def test_a_stranger_does_not_see_a_session_in_the_list(two: Table) -> None:
    assert two.said("ls-sessions", OTHER)["sessions"] == []
    opened = two.said("new-session", OTHER, name="theirs")
    assert opened["created"] is True
    assert [each["name"] for each in two.said("ls-sessions", OTHER)["sessions"]] == ["theirs"]
    listed = two.said("ls-sessions")["sessions"]
    assert [(each["name"], each["identity"]) for each in listed] == [("work", "self"), ("theirs", "uid:1001")]


def test_a_session_that_is_shared_to_read_can_be_looked_at_and_not_changed(two: Table) -> None:
    assert two.said("share", session="work", who="uid:1001", level="read")["shares"] == {"uid:1001": "read"}
    assert two.said("jobs", OTHER, session="work")["jobs"] == []
    for op in ("eval", "reset", "close", "interrupt", "stdin", "clear-bindings"):
        answer = two.said(op, OTHER, **({"session": "work"} | FIELDS.get(op, {})))
        assert answer["status"][-1] == "forbidden"
    assert "forbidden" in two.said("share", OTHER, session="work", level="write")["status"]
    two.said("share", session="work", who="uid:1001", level="none")
    assert "forbidden" in two.said("jobs", OTHER, session="work")["status"]


@pytest.mark.parametrize(
    ("op", "fields"), [("close-session", {"name": "work"}), ("clone-session", {"source": "work", "name": "copy"})]
)
def test_a_session_of_ones_own_opens_no_way_to_somebody_elses(two: Table, op: str, fields: dict[str, str]) -> None:
    two.said("new-session", OTHER, name="theirs")
    assert two.said(op, OTHER, session="theirs", **fields)["status"] == ["done", "error", "forbidden"]
    two.finish(two.eval())


def test_a_stranger_does_not_learn_why_a_session_is_in_plan_mode(two: Table) -> None:
    two.said("set-mode", session="work", to="plan", reason="the merger")
    answer = two.said("reset", OTHER, session="work")
    assert answer["status"] == ["done", "error", "forbidden"]
    assert "entered-reason" not in answer


def test_a_reader_does_not_change_the_mode(two: Table) -> None:
    two.said("share", session="work", who="uid:1001", level="read")
    assert two.said("set-mode", OTHER, session="work", to="plan")["status"] == ["done", "error", "forbidden"]
    two.finish(two.eval())


def test_a_session_that_is_shared_with_everybody_to_write_can_be_used(two: Table) -> None:
    two.said("share", session="work", level="write")
    running = two.ask("eval", OTHER, session="work", code="1")
    two.finish(running)
    assert "forbidden" in two.said("hand-over", OTHER, session="work", who="uid:1001")["status"]


def test_a_session_that_is_shared_to_read_can_be_copied_by_who_reads_it(two: Table) -> None:
    two.said("share", session="work", level="read")
    asked = two.ask("clone", OTHER, session="work", name="copy")
    two.worker("work").dumped(asked)
    assert two.end(asked)["name"] == "copy"
    assert two.session("copy").identity == "uid:1001"


def test_a_session_that_was_handed_over_is_somebody_elses(two: Table) -> None:
    two.core.meet(b"p3", "uid:1002")
    two.said("hand-over", session="work", who="uid:1001")
    two.finish(two.ask("eval", OTHER, session="work", code="1"))
    assert "forbidden" in two.said("jobs", b"p3", session="work")["status"]
    assert two.said("jobs", session="work")["jobs"]  # the broker's own user is an admin


def test_only_admins_end_the_broker(two: Table) -> None:
    assert "forbidden" in two.said("shutdown", OTHER)["status"]
    two.core.meet(b"p4", "uid:0")
    assert two.said("shutdown", b"p4")["status"] == ["done", "shutdown-started"]


def test_an_identity_has_one_rate_for_all_its_connections(new_table: Callable[..., Table]) -> None:
    table = new_table(rate_limit_per_min=3)
    for peer in (b"q1", b"q2"):
        table.core.meet(peer, "ada")
    assert [table.said("ping", peer)["status"][-1] for peer in (b"q1", b"q2", b"q1", b"q2")] == [
        "pong", "pong", "pong", "rate-limited",
    ]  # fmt: skip
    table.leaves(b"q1")
    assert table.said("ping", b"q2")["status"][-1] == "rate-limited"
    assert [table.said("ping", peer)["status"][-1] for peer in (b"p1", b"p5")] == ["pong", "pong"]


def test_describe_says_who_one_is(two: Table) -> None:
    assert two.said("describe", OTHER)["identity"] == "uid:1001"
    assert two.said("describe")["identity"] == "self"

"""Rights on sessions: owner, shares and admins. A session that a client may not see does not exist for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from core_harness import Answer, CoreHarness
from replbroker.core.operations import views
from replwire.ops import OPS
from test_agent_rules import FIELDS

OTHER = b"p2"
NOT_ABOUT_A_SESSION = (
    "describe",
    "hello",
    "ping",
    "stats",
    "reload-config",
    "shutdown",
    "unsubscribe",
    "introspect",
    "new-session",
    "ls-environments",
    "remove-environment",
    "put-snapshot",
    "find-eval",  # by a key of the sender
)
NOT_FOUND = ["done", "error", "session-not-found"]
FORBIDDEN = ["done", "error", "forbidden"]


@pytest.fixture
def two(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    """A harness where `work` belongs to the broker's user, and p2 is another user."""
    harness = new_harness()
    harness.core.set_identity(OTHER, "uid:1001")
    harness.open("work")
    return harness


def about(op: str, reference: str) -> dict[str, object]:
    """Return the fields of an operation about a session, whatever the field is called."""
    usual = {"eval_id": 0, "to": "plan", "symbol": "a", "code": "1", "pos": 0} | FIELDS.get(op, {})
    old_word = {"close-session": "name", "clone-session": "source"}.get(op)
    return usual | ({"session": reference} if old_word is None else {old_word: reference})


def refused(harness: CoreHarness, op: str, reference: str, peer: bytes = OTHER) -> Answer:
    """Return the error of an operation, without the reference to the session."""
    answer = harness.request(op, peer, **about(op, reference))
    assert answer["status"] == NOT_FOUND
    assert reference in answer["err"]
    return {
        key: value.replace(reference, "…") for key, value in answer.items() if isinstance(value, str) and key != "id"
    }


@pytest.mark.parametrize("op", [op for op in OPS if op not in NOT_ABOUT_A_SESSION])
def test_to_a_stranger_a_session_looks_like_one_that_does_not_exist(two: CoreHarness, op: str) -> None:
    two.eval("work", id="runs")
    id = two.session().id
    nothing = refused(two, op, "nothing")
    assert [refused(two, op, reference) for reference in ("work", "self/work", id)] == [nothing] * 3
    assert nothing == refused(two, op, "nobody/nothing") == refused(two, op, "uid:1001/work")
    assert two.request("ls-sessions", OTHER)["sessions"] == []
    two.finish("runs")


@pytest.mark.parametrize("reference", ["work", "self/work", "id-1"])
def test_an_eval_opens_no_session_of_somebody_else(two: CoreHarness, reference: str) -> None:
    asked = two.send("eval", OTHER, session=reference, code="1", **{"if-missing": "create"})
    if "/" in reference:
        assert two.final_reply(asked)["status"] == NOT_FOUND
    else:
        two.finish(asked)
        assert [each["owner"] for each in two.request("ls-sessions", OTHER)["sessions"]] == ["uid:1001"]
    assert two.session("id-1").owner == "self"


def test_each_identity_has_its_own_names(two: CoreHarness) -> None:
    assert two.request("new-session", OTHER, name="work", if_exists="reuse")["created"] is True
    hers = two.send("eval", OTHER, session="work", code="1")
    mine = two.eval("work")
    assert two.worker_running(hers) is not two.worker_running(mine)
    for asked in (hers, mine):
        two.finish(asked)
    two.request("close", OTHER, session="work")
    two.finish(two.eval("work"))


def test_a_bare_name_is_an_admins_own_and_never_anybody_elses(two: CoreHarness) -> None:
    two.open("hers", peer=OTHER)
    assert refused(two, "info", "hers", b"p1")
    two.finish(two.eval("hers"))
    assert sorted(each["ref"] for each in two.request("ls-sessions")["sessions"]) == ["hers", "uid:1001/hers", "work"]
    running = two.send("eval", session="uid:1001/hers", code="1")
    assert two.worker_running(running) is two.workers[two.session_of("uid:1001", "hers").worker or 0]
    two.finish(running)


def test_what_the_list_calls_a_session_means_it_in_a_request(two: CoreHarness) -> None:
    two.open("hers", peer=OTHER)
    two.request("share", OTHER, session="hers", level="read")
    for project in ("/a", "/b"):
        two.open("default", peer=OTHER, project=project)
        two.open("default", project=project)
    for project in (None, "/a"):
        listed = two.request("ls-sessions", project=project)["sessions"]
        asked = [
            two.state.lookup.get(two.build_request("info", session=each["ref"], project=project), b"p1")
            for each in listed
        ]
        assert [each["session"] for each in listed] == [session.id for session in asked]
    assert {each["ref"] for each in listed} >= {"work", "uid:1001/hers", "default", "uid:1001/default"}


def test_an_owner_with_a_slash_ends_at_the_last_one(two: CoreHarness) -> None:
    two.core.set_identity(b"p3", "sso:team/ada")
    two.open("lab", peer=b"p3")
    two.request("share", b"p3", session="lab", level="read")
    assert two.request("jobs", OTHER, session="sso:team/ada/lab")["jobs"] == []


@pytest.mark.parametrize("reference", ["/work", "self/", "a/b c", "x" * 300 + "/work", "a\nb/work"])
def test_a_reference_that_can_mean_nothing_is_refused_as_such(two: CoreHarness, reference: str) -> None:
    assert two.request("jobs", session=reference)["status"] == ["done", "error", "invalid-request"]


def test_no_session_is_opened_under_a_name_with_a_slash(two: CoreHarness) -> None:
    for op, fields in (("new-session", {"name": "a/b"}), ("clone", {"session": "work", "name": "a/b"})):
        assert two.request(op, **fields)["status"] == ["done", "error", "invalid-request"]
    own = two.send("eval", OTHER, session="uid:1001/mine", code="1", **{"if-missing": "create"})
    two.finish(own)
    assert two.session("mine").owner == "uid:1001"


def test_a_session_that_is_shared_to_read_can_be_looked_at_and_not_changed(two: CoreHarness) -> None:
    id = two.session().id
    assert two.request("share", session="work", who="uid:1001", level="read")["shares"] == {"uid:1001": "read"}
    for reference in ("self/work", id):
        assert two.request("jobs", OTHER, session=reference)["jobs"] == []
        for op in ("eval", "reset", "close", "interrupt", "stdin", "clear-bindings"):
            assert two.request(op, OTHER, **about(op, reference))["status"] == FORBIDDEN
        assert two.request("share", OTHER, session=reference, level="write")["status"] == FORBIDDEN
        assert two.request("transfer", OTHER, session=reference, who="uid:1001")["status"] == FORBIDDEN
        assert two.request("set-mode", OTHER, session=reference, to="plan")["status"] == FORBIDDEN
    assert [each["ref"] for each in two.request("ls-sessions", OTHER)["sessions"]] == ["self/work"]
    assert refused(two, "jobs", "work")
    two.request("share", session="work", who="uid:1001", level="none")
    assert refused(two, "jobs", "self/work")


@pytest.mark.parametrize(
    ("op", "fields"),
    [("close-session", {"name": "self/work"}), ("clone-session", {"source": "self/work", "name": "copy"})],
)
def test_a_session_of_ones_own_opens_no_way_to_somebody_elses(
    two: CoreHarness, op: str, fields: dict[str, str]
) -> None:
    two.request("new-session", OTHER, name="theirs")
    assert two.request(op, OTHER, session="theirs", **fields)["status"] == NOT_FOUND
    two.finish(two.eval())


def test_how_a_session_ended_is_told_to_its_owner_alone(two: CoreHarness) -> None:
    id = two.session().id
    two.worker().send_interpreter_exited("the merger")
    two.request("close", session="work")
    assert two.request("jobs", session="work")["cause"] == "closed"
    assert two.request("jobs", session=id)["cause"] == "closed"
    for reference in ("work", "self/work", id):
        assert refused(two, "jobs", reference) == refused(two, "jobs", "nothing")
    opened = two.send("eval", OTHER, session="work", code="1", **{"if-missing": "create"})
    assert "cause" not in two.finish(opened)
    assert all("cause" not in each for each in two.replies[opened])


def test_a_key_for_idempotency_is_ones_own(two: CoreHarness) -> None:
    two.core.set_identity(b"p3", "ada")
    two.eval("work", agent="ada", idempotency_key="k", id="mine")
    two.finish("mine")
    hers = two.send("eval", b"p3", session="work", code="1", **{"if-missing": "create", "idempotency-key": "k"})
    assert two.session_of("ada", "work").worker == two.worker_running(hers).number  # type: ignore[union-attr]
    two.finish(hers)


def test_a_session_that_is_shared_with_everybody_to_write_can_be_used(two: CoreHarness) -> None:
    two.request("share", session="work", level="write")
    running = two.send("eval", OTHER, session="self/work", code="1")
    two.finish(running)
    assert two.request("transfer", OTHER, session="self/work", who="uid:1001")["status"] == FORBIDDEN


def test_a_session_that_is_shared_to_read_can_be_copied_by_who_reads_it(two: CoreHarness) -> None:
    two.request("share", session="work", level="read")
    asked = two.send("clone", OTHER, session="self/work", name="work")
    two.worker("work").send_snapshot(asked)
    assert two.final_reply(asked)["name"] == "work"
    assert two.session_of("uid:1001", "work").eval_count == 0


def test_a_session_that_was_handed_over_is_somebody_elses(two: CoreHarness) -> None:
    two.core.set_identity(b"p3", "uid:1002")
    assert two.request("transfer", session="work", who="uid:1001")["owner"] == "uid:1001"
    two.finish(two.send("eval", OTHER, session="work", code="1"))
    assert refused(two, "jobs", "uid:1001/work", b"p3")
    assert refused(two, "jobs", "work", b"p1")
    assert two.request("jobs", session="uid:1001/work")["jobs"]  # the broker's own user is an admin
    two.finish(two.eval("work"))


def test_a_session_is_not_handed_to_an_owner_who_has_one_of_its_name(two: CoreHarness) -> None:
    two.open("work", peer=OTHER)
    answer = two.request("transfer", session="work", who="uid:1001")
    assert answer["status"] == ["done", "error", "session-already-exists"]
    assert two.session_of("self", "work").owner == "self"
    assert two.request("transfer", session="work", who="self")["owner"] == "self"


def test_only_admins_end_the_broker(two: CoreHarness) -> None:
    assert two.request("shutdown", OTHER)["status"] == FORBIDDEN
    two.core.set_identity(b"p4", "uid:0")
    assert two.request("shutdown", b"p4")["status"] == ["done", "shutdown-started"]


def test_stats_tell_a_stranger_nothing_of_the_others(two: CoreHarness) -> None:
    two.eval("work", agent="ada", id="runs")
    two.eval("work", agent="ada")
    assert two.request("stats")["stats"]["queued"] == {"total": 1, "by-agent": {"ada": 1}}
    assert two.request("stats", OTHER)["stats"]["queued"] == {"total": 1, "by-agent": {}}


def test_an_identity_has_one_rate_for_all_its_connections(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(rate_limit_per_min=3)
    for peer in (b"q1", b"q2"):
        harness.core.set_identity(peer, "ada")
    assert [harness.request("ping", peer)["status"][-1] for peer in (b"q1", b"q2", b"q1", b"q2")] == [
        "pong",
        "pong",
        "pong",
        "rate-limited",
    ]
    harness.disconnect(b"q1")
    assert harness.request("ping", b"q2")["status"][-1] == "rate-limited"
    assert [harness.request("ping", peer)["status"][-1] for peer in (b"p1", b"p5")] == ["pong", "pong"]


def test_describe_says_who_one_is(two: CoreHarness) -> None:
    assert two.request("describe", OTHER)["identity"] == "uid:1001"
    assert two.request("describe")["identity"] == "self"


def test_what_somebody_waits_for_is_refused_when_the_share_is_taken_back(two: CoreHarness) -> None:
    two.request("share", session="work", who="uid:1001", level="read")
    two.core.set_identity(b"p3", "uid:1002")
    two.request("share", session="work", who="uid:1002", level="read")
    two.eval("work", id="runs")
    waits = {"session": "self/work", "eval-id": 1, "wait-ms": 60_000}
    theirs, others, own = (two.send("read", peer, **waits) for peer in (OTHER, b"p3", b"p1"))
    two.request("share", session="work", who="uid:1001", level="none")
    assert two.final_reply(theirs)["status"] == NOT_FOUND
    two.worker().reply(theirs, value="secret")
    two.worker().reply(others, value="42")
    two.worker().reply(own, value="42")
    assert "value" not in two.final_reply(theirs)
    assert two.final_reply(others)["value"] == two.final_reply(own)["value"] == "42"
    two.finish("runs")


def test_what_an_earlier_owner_waits_for_is_refused_when_the_other_one_takes_the_session(two: CoreHarness) -> None:
    two.core.set_identity(b"p3", "uid:1002")
    two.open("hers", peer=b"p3")
    two.finish(two.send("eval", b"p3", session="hers", code="1"))
    waits = two.send("info", b"p3", session="hers")
    two.request("transfer", b"p3", session="hers", who="uid:1001")
    assert two.request("transfer", OTHER, session="uid:1002/hers", who="uid:1001")["owner"] == "uid:1001"
    assert two.final_reply(waits)["status"] == NOT_FOUND


def test_info_names_the_user_whose_rights_the_worker_has_also_after_a_transfer(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness()
    harness.state.config = replace(
        harness.state.config, broker_user="uid:0"
    )  # else sessions act as the broker's user alone
    harness.core.set_identity(OTHER, "uid:1001")
    harness.core.set_identity(b"p3", "uid:1002")
    harness.open("hers", peer=OTHER)
    harness.request("transfer", OTHER, session="hers", who="uid:1002")
    harness.request("transfer", b"p3", session="uid:1001/hers", who="uid:1002")

    def acts_as() -> object:
        return views.info(harness.state, harness.session_of("uid:1002", "hers"), 0.0)["acts-as"]

    assert acts_as() == "uid:1001"
    harness.send("reset", b"p3", session="hers")
    assert acts_as() == "uid:1002"


def test_a_refusal_names_the_session_as_the_caller_has_to(two: CoreHarness) -> None:
    two.open("hers", peer=OTHER)
    two.request("share", OTHER, session="hers", level="read")
    two.core.set_identity(b"p3", "uid:1002")
    for op, fields in (("reset", {}), ("share", {"level": "read"})):
        assert "session uid:1001/hers " in two.request(op, b"p3", session="uid:1001/hers", **fields)["err"]
    two.send("eval", OTHER, session="hers", code="1")
    assert "session uid:1001/hers " in two.request("clear-bindings", session="uid:1001/hers")["err"]
    assert "session hers " in two.request("clear-bindings", OTHER, session="hers")["err"]


def test_who_may_read_a_session_gets_no_file_of_it(two: CoreHarness) -> None:
    for level in ("read", "write"):
        two.request("share", session="work", level=level, who="uid:1001")
        asked = two.send("get-file", OTHER, session="self/work", file="secret")
        if level == "read":
            assert two.final_reply(asked)["status"] == FORBIDDEN
    two.worker().reply(asked, data="aGkK")
    assert two.final_reply(asked)["data"] == "aGkK"

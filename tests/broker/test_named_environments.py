"""Named environments in the core: their owners, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replbroker.core.sessions.named_environments import NamedEnvironments
from replwire.faults import RequestError
from replwire.limits import Limits

KEPT = frozenset({"@a", "@b", "@uid:7/a"})
NAMES = NamedEnvironments("uid:1", lambda: KEPT)


@pytest.mark.parametrize(
    ("asked", "identity", "found"),
    [
        ("@a", "uid:1", "@a"),
        ("@a", "uid:7", "@uid:7/a"),
        ("@uid:7/a", "uid:7", "@uid:7/a"),
        ("@uid:1/a", "uid:1", "@a"),
    ],
)
def test_a_name_is_its_owners(asked: str, identity: str, found: str) -> None:
    assert NAMES.qualify(asked, identity) == found


@pytest.mark.parametrize(
    ("asked", "code"),
    [("@uid:1/a", "forbidden"), ("@../a", "invalid-request"), ("@", "invalid-request"), ("@a.b", "invalid-request")],
)
def test_anothers_name_and_no_name_are_refused(asked: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        NAMES.qualify(asked, "uid:7")
    assert caught.value.code == code


def test_there_is_room_for_those_that_are_there_and_no_more() -> None:
    limits = Limits(max_environments=4, max_identity_environments=2)
    NAMES.check_room("@a", [], limits)
    NAMES.check_room("@uid:7/b", [], limits)
    NAMES.check_room("@uid:7/b", ["@uid:7/b"], limits)
    for environment, used, limit in (
        ("@c", [], "max-identity-environments"),
        ("@uid:7/c", ["@uid:7/b"], "max-identity-environments"),
        ("@uid:8/c", ["@uid:7/b"], "max-environments"),
    ):
        with pytest.raises(RequestError) as caught:
            NAMES.check_room(environment, used, limits)
        assert caught.value.code == "environment-limit-reached"
        assert caught.value.fields["limit"] == limit


OTHER = b"p2"


@pytest.fixture
def two(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    """A harness with `@a` and `@b` of the broker's user and `@uid:7/a` of p2; `work` is a session in `@a`."""
    harness = new_harness(audit=True, ask_timeout_ms=3000)
    harness.core.set_identity(OTHER, "uid:7")
    harness.environments |= KEPT
    harness.open("work", runtime="@a")
    return harness


def listed(harness: CoreHarness, peer: bytes = b"p1") -> list[tuple[str, str, list[str], int]]:
    entries = harness.request("ls-environments", peer)["environments"]
    return [(each["environment"], each["owner"], each["sessions"], each["session-count"]) for each in entries]


def test_one_sees_ones_own_and_an_admin_all(two: CoreHarness) -> None:
    theirs = ("@uid:7/a", "uid:7", [], 0)
    assert listed(two) == [("@a", "self", ["work"], 1), ("@b", "self", [], 0), theirs]
    assert listed(two, OTHER) == [theirs]


def test_a_removal_answers_when_it_is_done_and_nobody_can_ask_for_it_until_then(two: CoreHarness) -> None:
    asked = two.send("remove-environment", environment="@b")
    assert (two.removing, two.is_pending(asked)) == (["@b"], True)
    for again in (
        two.request("remove-environment", environment="@b"),
        two.request("new-session", name="x", runtime="@b"),
        two.request("env", session="work", action="activate", path="@b"),
    ):
        assert again["status"] == ["done", "error", "busy"]
    two.finish_removal()
    assert two.final_reply(asked)["environment"] == "@b"
    assert "@b" not in [each[0] for each in listed(two)]
    assert (two.audited[-2].op, two.audited[-2].session, two.audited[-2].outcome) == ("remove-environment", "@b", "ok")
    assert two.request("new-session", name="x", runtime="@b")["created"] is True


@pytest.mark.parametrize(
    ("environment", "peer", "code"),
    [
        ("@a", b"p1", "environment-in-use"),
        ("@none", b"p1", "environment-not-found"),
        ("@self/b", OTHER, "environment-not-found"),
        ("@self/none", OTHER, "environment-not-found"),
        ("@b", OTHER, "environment-not-found"),
        ("@../b", b"p1", "invalid-request"),
        ("b", b"p1", "invalid-request"),
        ("@" + "x" * 700, b"p1", "invalid-request"),
    ],
)
def test_what_is_in_use_anothers_or_not_there_is_not_removed(
    two: CoreHarness, environment: str, peer: bytes, code: str
) -> None:
    assert two.request("remove-environment", peer, environment=environment)["status"] == ["done", "error", code]
    assert two.removing == []


def test_a_refusal_names_the_sessions_that_the_client_may_see(two: CoreHarness) -> None:
    two.open("hers", runtime="@a", peer=OTHER)
    two.request("share", OTHER, session="hers", who="self", level="read")
    two.request("transfer", session="work", who="uid:7")
    assert two.request("remove-environment", environment="@a")["err"].endswith("environment @a: uid:7/work")
    refused = two.request("remove-environment", OTHER, environment="@a")
    assert refused["err"].endswith("@uid:7/a: hers")


def test_an_admin_removes_anybodys(two: CoreHarness) -> None:
    asked = two.send("remove-environment", environment="@uid:7/a")
    two.finish_removal()
    assert two.final_reply(asked)["environment"] == "@uid:7/a"
    assert listed(two, OTHER) == []


def test_workers_that_no_session_has_are_ended_first(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(warm=1)
    harness.environments |= {"@a"}
    harness.open("work", runtime="@a")
    harness.wait(0.1)
    harness.request("close", session="work")
    asked = harness.send("remove-environment", environment="@a")
    assert [number for number, worker in harness.core.scheduler.pool.workers.items() if worker.spec.environment] == []
    harness.finish_removal()
    assert harness.final_reply(asked)["status"] == ["done"]


def test_a_session_that_is_to_move_there_has_it(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False)
    harness.send("new-session", name="work")
    harness.workers[1].send_ready()
    harness.workers[1].send_assigned()
    harness.send("env", session="work", action="activate", path="@a")
    assert harness.request("remove-environment", environment="@a")["status"][-1] == "environment-in-use"


def test_a_removal_that_cannot_be_or_takes_long_is_told(two: CoreHarness) -> None:
    failed = two.send("remove-environment", environment="@b")
    two.finish_removal("Permission denied")
    assert two.final_reply(failed)["status"][-1] == "environment-failed"
    slow = two.send("remove-environment", environment="@b")
    two.wait(4)
    assert two.final_reply(slow)["status"][-1] == "timeout"
    assert two.request("remove-environment", environment="@b")["status"][-1] == "busy"
    two.finish_removal()
    removal = two.send("remove-environment", OTHER, environment="@a")
    two.disconnect(OTHER)
    two.finish_removal()
    assert two.is_pending(removal)
    assert len(two.state.deadlines) == 1  # the sweep
    assert two.audited[-1].outcome == "client-disconnected"


def test_a_broker_that_ends_tells_who_waits_for_a_removal(two: CoreHarness) -> None:
    asked = two.send("remove-environment", environment="@b")
    two.request("shutdown")
    assert two.final_reply(asked)["status"][-1] == "shutdown"

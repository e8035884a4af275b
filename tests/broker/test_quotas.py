"""Quotas of identities and their agents; every error says whose quota was met, and is temporary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness import CoreHarness
from replbroker.core.limits.quotas import (
    IDEMPOTENCY_KEYS,
    QUEUE,
    READS,
    RESOURCES,
    SESSIONS,
    SLOTS,
    SUBSCRIPTIONS,
    Holder,
    Quotas,
)
from replwire.faults import RequestError
from replwire.limits import Limits
from replwire.link import FrameKind

ADA, BOB, OWN = b"ada1", b"bob1", b"p1"


def quotas_of(listed: dict[str, dict[str, int]] | None = None, **limits: int) -> Quotas:
    return Quotas(Limits(**limits), listed or {}, {"self"})


def take(quotas: Quotas, identity: str, agent: str = "a", most: int = 1000) -> int:
    """Charge sessions until there is no room. Return how many there were."""
    holder, count = Holder(identity, agent), 0
    while count < most and quotas.has_room(SESSIONS, holder):
        quotas.charge(SESSIONS, holder)
        count += 1
    return count


def exceeded_quota(quotas: Quotas, identity: str, agent: str = "a") -> tuple[str, Any, Any]:
    with pytest.raises(RequestError) as refused:
        quotas.check(SESSIONS, Holder(identity, agent))
    more = refused.value.fields
    assert (refused.value.code, more["limit"]) == ("session-limit-reached", "max-sessions")
    return refused.value.message, more["limit_value"], more["quota_of"]


@pytest.fixture
def shared(new_harness: Callable[..., CoreHarness]) -> Callable[..., CoreHarness]:
    """A harness with clients of two users beside the broker's own, two connections each."""

    def begin(**limits: int) -> CoreHarness:
        harness = new_harness(**limits)
        for peer, identity in (
            (ADA, "uid:1"),
            (b"ada2", "uid:1"),
            (BOB, "uid:2"),
            (b"bob2", "uid:2"),
            (b"eve1", "uid:3"),
        ):
            harness.core.set_identity(peer, identity)
        return harness

    return begin


# --- the object ---


def test_one_identity_may_hold_its_share_and_the_brokers_own_user_all() -> None:
    quotas = quotas_of()
    assert take(quotas, "uid:1") == 50
    assert exceeded_quota(quotas, "uid:1") == ("Session limit reached for uid:1 (max-sessions = 50)", 50, "uid:1")
    assert take(quotas_of(), "self") == 100


def test_what_others_cannot_take_is_there_for_the_brokers_own_user() -> None:
    quotas = quotas_of(identity_share_percent=100)
    assert take(quotas, "uid:1") == 90
    assert exceeded_quota(quotas, "uid:1") == ("Session limit reached for uid:1 (max-sessions = 90)", 90, "uid:1")
    assert exceeded_quota(quotas, "uid:2") == ("Session limit reached (max-sessions = 90)", 90, None)
    assert take(quotas, "self") == 10
    assert exceeded_quota(quotas, "self") == ("Session limit reached (max-sessions = 100)", 100, None)


def test_identities_with_more_than_an_equal_part_leave_the_last_of_it_to_others() -> None:
    quotas = quotas_of()
    assert (take(quotas, "uid:1"), take(quotas, "uid:2")) == (50, 40)
    quotas = quotas_of()
    assert take(quotas, "uid:3", most=1) == 1
    assert (take(quotas, "uid:1"), take(quotas, "uid:2")) == (50, 30)  # the last tenth is for who has less than a third
    assert take(quotas, "uid:3") == 9
    assert exceeded_quota(quotas, "uid:3")[2] is None


@pytest.mark.parametrize("total", range(1, 12))
def test_a_small_total_has_room_for_anybody(total: int) -> None:
    quotas = quotas_of(max_sessions=total)
    assert take(quotas, "uid:1") >= 1
    assert take(quotas_of(max_sessions=total), "self") == total
    quotas.release(SESSIONS, Holder("uid:1", "a"))
    assert take(quotas, "uid:2") >= 1


def test_labels_divide_what_their_identity_may_hold_and_never_add_to_it() -> None:
    quotas = quotas_of()
    assert sum(take(quotas, "uid:1", f"label{number}", most=3) for number in range(40)) == 50
    quotas = quotas_of()
    assert take(quotas, "self", "calm", most=1) == 1
    assert take(quotas, "self", "greedy") == 89
    assert exceeded_quota(quotas, "self", "greedy") == (
        "Session limit reached for agent greedy of self (max-sessions = 50)",
        50,
        "agent greedy of self",
    )
    assert take(quotas, "self", "calm") == 10


def test_an_identity_that_is_listed_has_what_the_config_gives_it() -> None:
    quotas = quotas_of({"uid:1": {"max-sessions": 3}, "uid:2": {"max-sessions": 10_000}, "self": {"max-sessions": 4}})
    assert (take(quotas, "uid:1"), take(quotas, "self")) == (3, 4)
    assert take(quotas, "uid:2") == 87  # of all there are, and the reserve stays
    assert exceeded_quota(quotas, "uid:1")[1:] == (3, "uid:1")


def test_what_is_released_can_be_had_again() -> None:
    quotas = quotas_of(max_sessions=4)
    assert take(quotas, "uid:1") == 2
    quotas.release(SESSIONS, Holder("uid:1", "a"))
    assert take(quotas, "uid:1", "b") == 1
    for agent in "ab":
        quotas.release(SESSIONS, Holder("uid:1", agent))
    assert (quotas.total(SESSIONS), list(quotas.identities())) == (0, [])


def test_who_holds_nothing_can_release_nothing() -> None:
    with pytest.raises(AssertionError, match="holds no max-sessions"):
        quotas_of().release(SESSIONS, Holder("uid:1", "a"))


@given(st.lists(st.tuples(st.sampled_from(["self", "uid:1", "uid:2", "uid:3"]), st.sampled_from("abc"), st.booleans())))
def test_sums_are_those_of_what_is_held(steps: list[tuple[str, str, bool]]) -> None:
    quotas, held = quotas_of(max_sessions=8), list[Holder]()
    for identity, agent, charge in steps:
        holder = Holder(identity, agent)
        if charge and quotas.has_room(SESSIONS, holder):
            quotas.charge(SESSIONS, holder)
            held.append(holder)
        elif not charge and holder in held:
            quotas.release(SESSIONS, holder)
            held.remove(holder)
        assert quotas.total(SESSIONS) == len(held) <= 8
        assert {who: quotas.used_by(SESSIONS, who) for who in quotas.identities()} == {
            who: sum(each.identity == who for each in held) for who in dict.fromkeys(each.identity for each in held)
        }
        assert sum(each.identity != "self" for each in held) <= 7
        assert quotas.has_room(SESSIONS, Holder("self", "new")) == (len(held) < 8)


# --- sessions, queue, slots ---


def test_a_user_with_all_of_its_sessions_locks_nobody_out(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_sessions=10)
    opened = [harness.request("new-session", ADA, name=f"a{number}")["status"][-1] for number in range(7)]
    assert opened == ["done"] * 5 + ["session-limit-reached"] * 2
    refused = harness.request("new-session", b"ada2", agent="another-label")
    assert refused["err"] == "Session limit reached for uid:1 (max-sessions = 5)"
    assert (refused["quota-of"], refused["retry-after-ms"]) == ("uid:1", 1000)
    assert harness.request("new-session", BOB, name="b")["status"] == ["done"]
    assert harness.request("new-session", OWN, name="own")["status"] == ["done"]
    harness.request("close", ADA, session="a0")
    assert harness.request("new-session", ADA, name="a9")["status"] == ["done"]


def test_a_session_that_is_handed_over_counts_for_its_new_owner(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_sessions=6)
    for name in ("x", "y", "z"):
        harness.request("new-session", ADA, name=name)
    harness.request("new-session", BOB, name="b")
    full, free = [next(each.id for each in harness.state.sessions if each.name == name) for name in ("b", "x")]
    harness.request("transfer", BOB, session=full, who="uid:1")
    refused = harness.request("transfer", ADA, session=full, who="uid:1")
    assert refused["err"] == "Session limit reached for uid:1 (max-sessions = 3)"
    harness.request("transfer", ADA, session=free, who="uid:2")
    assert harness.request("transfer", BOB, session=free, who="uid:2")["owner"] == "uid:2"
    assert (harness.state.quotas.used_by(SESSIONS, "uid:1"), harness.state.quotas.used_by(SESSIONS, "uid:2")) == (2, 2)
    assert harness.request("new-session", ADA, name="w")["status"] == ["done"]


def test_labels_do_not_lengthen_the_queue_of_an_identity(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_concurrent_evals=1, max_queued_evals=3)
    harness.eval("held")
    ends = [harness.eval("a", peer=ADA, agent=f"label{number}", if_missing="create") for number in range(6)]
    waiting = [each for each in ends if harness.is_pending(each)]
    assert len(waiting) == 3
    refused = harness.final_reply(ends[-1])
    assert (refused["limit"], refused["limit-value"], refused["quota-of"]) == ("max-queued-evals", 3, "uid:1")
    assert harness.is_pending(harness.eval("b", peer=BOB))
    assert harness.state.quotas.used_by(QUEUE, "uid:1") == 3


def test_sleeping_jobs_of_one_agent_leave_slots_to_others_of_the_same_user(harness: CoreHarness) -> None:
    jobs = [harness.eval(f"job{number}", agent="sleeper", wait_ms=0) for number in range(10)]
    assert harness.running_evals(*jobs) == jobs[:8]
    calm = [harness.eval(f"calm{number}", agent="calm") for number in range(3)]
    assert harness.running_evals(*calm) == calm[:2]
    harness.finish(calm[0])
    assert harness.running_evals(*calm) == calm[1:]
    harness.finish_abandoned(jobs[0])
    assert harness.running_evals(*jobs[8:]) == jobs[8:9]


def test_what_has_no_longer_limit_than_others_is_not_long_for_being_waited_for(harness: CoreHarness) -> None:
    jobs = [harness.eval(f"job{number}", wait_ms=0, timeout_ms=30_000) for number in range(10)]
    assert harness.running_evals(*jobs) == jobs


def test_a_single_slot_is_for_long_evals_too(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(max_concurrent_evals=1)
    job = harness.eval(wait_ms=0)
    assert harness.running_evals(job) == [job]


def test_a_user_that_floods_gets_no_more_than_its_share_and_its_turn(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_concurrent_evals=4, max_sessions=100)
    flood = [harness.eval(f"f{number}", peer=ADA, agent=f"label{number}") for number in range(12)]
    assert harness.running_evals(*flood) == flood[:2]
    calm = harness.eval("calm", peer=BOB)
    own = harness.eval("own")
    assert harness.running_evals(calm, own) == [calm, own]
    harness.finish(calm)
    assert harness.running_evals(*flood) == flood[:2]
    harness.finish(flood[0])
    assert harness.running_evals(*flood) == flood[1:3]
    assert harness.state.quotas.used_by(SLOTS, "uid:1") == 2


# --- reads, subscriptions, keys, requests ---


def test_requests_that_wait_are_bounded_for_each_identity(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_waiting_reads_total=4)
    for name, peer in (("a", ADA), ("b", BOB), ("own", OWN)):
        harness.open(name, peer=peer)
    asked = [harness.send("stack", ADA, session="a") for _ in range(3)]
    assert [harness.is_pending(each) for each in asked] == [True, True, False]
    refused = harness.final_reply(asked[2])
    assert (refused["limit"], refused["quota-of"]) == ("max-waiting-reads-total", "uid:1")
    anywhere = harness.request("complete", ADA, code="a", pos=1)
    assert anywhere["status"][-1] == "concurrency-limit-reached"
    assert len(harness.state.sessions) == 3  # none was opened for it
    assert harness.is_pending(harness.send("stack", BOB, session="b"))
    harness.worker("a").reply(asked[0])
    assert harness.is_pending(harness.send("stack", ADA, session="a"))
    harness.wait(15)
    assert harness.state.quotas.total(READS) == 0


def test_subscriptions_are_bounded_for_each_identity(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_subscriptions_total=4)
    for peer in (ADA, b"ada2"):
        assert harness.replies[harness.send("subscribe", peer)][0]["status"] == ["subscribed"]
    refused = harness.request("subscribe", b"ada2")
    assert (refused["status"][-1], refused["quota-of"]) == ("concurrency-limit-reached", "uid:1")
    assert harness.replies[harness.send("subscribe", BOB)][0]["status"] == ["subscribed"]
    harness.disconnect(ADA)
    harness.core.set_identity(ADA, "uid:1")
    assert harness.replies[harness.send("subscribe", ADA)][0]["status"] == ["subscribed"]
    assert harness.state.quotas.total(SUBSCRIPTIONS) == 3


def test_keys_of_one_identity_push_out_none_of_another(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_idempotency_keys=10)
    first = harness.eval("b", peer=BOB, agent="x", idempotency_key="mine")
    for number in range(20):
        asked = harness.eval("a", peer=ADA, agent=f"label{number}", idempotency_key=f"k{number}")
        harness.finish(asked)
    assert harness.state.quotas.used_by(IDEMPOTENCY_KEYS, "uid:1") == 5
    harness.finish(first)
    again = harness.eval("b", peer=BOB, agent="x", idempotency_key="mine")
    assert harness.worker("b").op_of(again) == "read"


def test_one_label_of_two_users_is_two_agents(shared: Callable[..., CoreHarness]) -> None:
    harness = shared()
    for name, peer in (("a", ADA), ("b", BOB)):
        harness.open(name, peer=peer)
        asked = harness.eval(name, peer=peer, agent="same", idempotency_key="k")
        assert harness.worker(name).op_of(asked) == "eval"


def test_who_asks_too_often_may_still_interrupt_and_close(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(rate_limit_per_min=3, control_rate_per_min=2)
    asked = harness.eval("a", peer=ADA)
    flood = [harness.request("ping", ADA)["status"][-1] for _ in range(4)]
    assert flood == ["pong", "pong", "rate-limited", "rate-limited"]
    assert harness.request("interrupt", ADA, session="a")["interrupted-id"] == 1
    assert len(harness.cancels("a")) == 1
    assert harness.request("ping", ADA)["status"][-1] == "rate-limited"
    assert harness.request("close", ADA, session="a")["status"] == ["done", "session-closed"]
    assert harness.final_reply(asked)["status"] == ["done", "interrupted", "session-closed"]
    refused = harness.request("interrupt", ADA, session="a")
    assert (refused["status"][-1], refused["quota-of"]) == ("rate-limited", "uid:1")
    harness.wait(61)
    assert harness.request("ping", ADA)["status"][-1] == "pong"


def test_what_only_names_an_interrupt_does_not_get_through(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(rate_limit_per_min=1)
    harness.request("ping", ADA)
    for fields in (
        {"op": "eval", "code": '"interrupt"'},
        {"op": "ping", "x": "interrupt"},
        {"op": "interrupt", "x": "y" * 2000},
    ):
        assert harness.request(peer=ADA, **fields)["status"][-1] == "rate-limited"


# --- what is told of it ---


def test_an_identity_sees_its_own_quotas_and_an_admin_all(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_concurrent_evals=1)
    harness.eval("a", peer=ADA)
    harness.eval("a2", peer=ADA, agent="secret-label")
    harness.open("b", peer=BOB)
    own = harness.request("stats", ADA)["stats"]
    assert list(own["quotas"]) == ["uid:1"]
    assert own["quotas"]["uid:1"]["max-sessions"] == {"used": 2, "quota": 50}
    assert own["queued"] == {"total": 1, "by-agent": {"secret-label": 1}}
    assert harness.request("stats", BOB)["stats"]["queued"]["by-agent"] == {}
    every = harness.request("stats", OWN)["stats"]
    assert set(every["quotas"]) == {"uid:1", "uid:2"}
    assert every["queued"]["by-agent"] == {"uid:1/secret-label": 1}
    assert set(own["quotas"]["uid:1"]) == {each.quota for each in RESOURCES}


def test_nothing_stays_charged_when_all_is_over(shared: Callable[..., CoreHarness]) -> None:
    harness = shared(max_concurrent_evals=2)
    for peer, name in ((ADA, "a"), (BOB, "b"), (OWN, "own")):
        for _ in range(3):
            harness.eval(name, peer=peer)
        harness.eval(None, peer=peer)
        harness.send("read", peer, session=name, eval_id=1, wait_ms=5000)
        harness.send("subscribe", peer)
    for peer in (ADA, BOB, OWN):
        harness.disconnect(peer)
    for worker in list(harness.workers.values()):
        for header, body in worker.frames(FrameKind.REQUEST):
            worker.send(
                FrameKind.REPLY,
                {"id": body["id"], "status": ["done"]},
                outcome=1,
                epoch=header.epoch,
                eval=header.eval,
                route=header.route,
            )
    harness.core.set_identity(OWN, "self")
    for session in list(harness.state.sessions):
        harness.request("close", session=session.id)
    assert {each.quota: harness.state.quotas.total(each) for each in RESOURCES} == dict.fromkeys(
        [each.quota for each in RESOURCES], 0
    )

"""The fair semaphore: slots go round between identities, then between their agents; long evals get only some."""

from __future__ import annotations

import random

import pytest

from replbroker.core.limits.fair_semaphore import FairSemaphore, SlotRequest
from replbroker.core.limits.quotas import SLOTS, Holder, Quotas
from replwire.limits import Limits

OWN = "self"


def build_semaphore(
    slots: int, long_slots: int | None = None, share: int = 100, reserve: int = 0
) -> FairSemaphore[str]:
    limits = Limits(max_concurrent_evals=slots, identity_share_percent=share, reserve_percent=reserve)
    quotas = Quotas(limits, {}, {OWN})
    return FairSemaphore(quotas, slots, slots if long_slots is None else long_slots)


def turn(agent: str, identity: str = OWN, *, long: bool = False) -> SlotRequest:
    return SlotRequest(Holder(identity, agent), long)


def test_the_gate_takes_no_more_than_its_slots() -> None:
    semaphore = build_semaphore(2)
    assert [semaphore.acquire(turn("a"), item) for item in ("1", "2", "3")] == [True, True, False]
    assert (semaphore.in_use, len(semaphore), semaphore.count_waiting()) == (2, 1, {turn("a"): 1})
    assert semaphore.release(turn("a")) == ["3"]
    assert (semaphore.in_use, len(semaphore)) == (2, 0)
    assert (semaphore.release(turn("a")), semaphore.release(turn("a")), semaphore.in_use) == ([], [], 0)


def test_who_leaves_the_gate_is_not_served() -> None:
    semaphore = build_semaphore(1)
    for item in ("0", "1", "2"):
        semaphore.acquire(turn("a"), item)
    semaphore.acquire(turn("b"), "3")
    semaphore.cancel(turn("a"), "1")
    semaphore.cancel(turn("b"), "3")
    assert (semaphore.release(turn("a")), semaphore.release(turn("a")), len(semaphore)) == (["2"], [], 0)


@pytest.mark.parametrize(("agent", "item"), [("a", "9"), ("b", "1")])
def test_who_does_not_wait_cannot_leave(agent: str, item: str) -> None:
    semaphore = build_semaphore(1)
    semaphore.acquire(turn("a"), "0")
    semaphore.acquire(turn("a"), "1")
    with pytest.raises(ValueError):  # noqa: PT011
        semaphore.cancel(turn(agent), item)
    assert semaphore.release(turn("a")) == ["1"]


def test_an_identity_with_twenty_labels_has_no_more_turns_than_one_with_one() -> None:
    semaphore = build_semaphore(1)
    semaphore.acquire(turn("z", "uid:9"), "first")
    for number in range(20):
        semaphore.acquire(turn(f"label{number}", "uid:1"), f"many{number}")
    for number in range(3):
        semaphore.acquire(turn("label", "uid:2"), f"one{number}")
    served, ran = [], turn("z", "uid:9")
    for _ in range(7):
        served += semaphore.release(ran)
        ran = turn(f"label{served[-1][4:]}", "uid:1") if served[-1].startswith("many") else turn("label", "uid:2")
    assert served == ["many0", "one0", "many1", "one1", "many2", "one2", "many3"]


def test_one_identity_has_its_share_of_the_slots_and_the_rest_stays_for_others() -> None:
    semaphore = build_semaphore(10, share=50, reserve=10)
    assert [semaphore.acquire(turn("a", "uid:1"), str(number)) for number in range(7)] == [True] * 5 + [False] * 2
    assert [semaphore.acquire(turn("a", "uid:2"), str(number)) for number in range(5)] == [True] * 4 + [False]
    assert semaphore.acquire(turn("a"), "own")
    assert semaphore.in_use == 10
    assert semaphore.release(turn("a")) == []  # what is kept for the broker's user stays free
    assert semaphore.release(turn("a", "uid:1")) == ["5"]


def test_long_evals_wait_for_a_slot_of_theirs_and_short_ones_pass_them_by() -> None:
    semaphore = build_semaphore(3, long_slots=2)
    assert [semaphore.acquire(turn("a", long=True), item) for item in ("l1", "l2", "l3")] == [True, True, False]
    assert [semaphore.acquire(turn("a"), item) for item in ("s1", "s2")] == [True, False]
    assert semaphore.release(turn("a")) == ["s2"]
    assert semaphore.release(turn("a")) == []
    assert semaphore.release(turn("a", long=True)) == ["l3"]


def test_one_release_may_let_in_two_that_waited_for_different_reasons() -> None:
    semaphore = build_semaphore(4, long_slots=1, share=50)
    assert semaphore.acquire(turn("a", "uid:1", long=True), "1")
    assert semaphore.acquire(turn("a", "uid:1"), "2")
    assert not semaphore.acquire(turn("a", "uid:1"), "of the share")
    assert not semaphore.acquire(turn("b", "uid:2", long=True), "of the long ones")
    assert sorted(semaphore.release(turn("a", "uid:1", long=True))) == ["of the long ones", "of the share"]


@pytest.mark.parametrize("seed", range(20))
def test_nobody_that_waits_is_passed_over_twice_by_another(seed: int) -> None:
    """While an agent waits, each other agent of its identity is served at most once before it.

    The same holds for identities.
    """
    pick = random.Random(seed)
    semaphore: FairSemaphore[str] = build_semaphore(1)
    ran = turn("z", "uid:9")
    semaphore.acquire(ran, "first")
    since: dict[Holder, list[str]] = {}  # agents of the identity that were served since
    beside: dict[str, list[str]] = {}  # identities
    turns: dict[str, SlotRequest] = {"first": ran}
    for number in range(1, 500):
        if pick.random() < 0.6:
            mine = turns[str(number)] = turn(pick.choice("abc"), pick.choice(["uid:1", "uid:2", "uid:3"]))
            semaphore.acquire(mine, str(number))
            since.setdefault(mine.holder, [])
            beside.setdefault(mine.holder.identity, [])
        elif not (served := semaphore.release(ran)):
            semaphore.acquire(ran := turn("z", "uid:9"), f"again {number}")
        else:
            ran = turns[served[0]]
            identity, agent = ran.holder
            for passed in (since.pop(ran.holder), beside.pop(identity)):
                assert len(passed) == len(set(passed))
            for holder, passed in since.items():
                passed += [agent] if holder.identity == identity else []
            for passed in beside.values():
                passed.append(identity)
            waiting = [each.holder for each in semaphore.count_waiting()]
            if ran.holder in waiting:
                since[ran.holder] = []
            if identity in {holder.identity for holder in waiting}:
                beside[identity] = []
        assert semaphore.in_use == 1


def test_slots_are_charged_to_whoever_has_them() -> None:
    semaphore = build_semaphore(2)
    semaphore.acquire(turn("a", "uid:1"), "1")
    semaphore.acquire(turn("b", "uid:1"), "2")
    semaphore.acquire(turn("c", "uid:1"), "3")
    quotas = semaphore._quotas
    assert dict(quotas.by_holder(SLOTS)) == {Holder("uid:1", "a"): 1, Holder("uid:1", "b"): 1}
    assert semaphore.release(turn("a", "uid:1")) == ["3"]
    assert dict(quotas.by_holder(SLOTS)) == {Holder("uid:1", "b"): 1, Holder("uid:1", "c"): 1}

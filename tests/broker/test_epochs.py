"""Epochs: per owner and name they only grow, through closes, transfers, and the end of a broker."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from core_harness import CoreHarness
from replbroker.core.effects import Effect, SaveRecords, ToClient
from replbroker.core.records import SavedEval, SavedProgress, SavedState, SessionRecord
from replbroker.core.sessions.session_records import BROKER_ENDED
from replwire.limits import MAX_CLOSED_SESSIONS
from replwire.link import FrameKind

OTHER = b"p2"
New = Callable[..., CoreHarness]


def build_successor(of: CoreHarness, new_harness: New) -> CoreHarness:
    """Build the broker that comes after one that was killed with all its workers."""
    after = new_harness()
    after.core.restore(of.saved_state(), frozenset(), after.now)
    return after


def test_every_new_worker_of_a_name_has_a_higher_epoch(harness: CoreHarness) -> None:
    seen = [harness.open("work")["epoch"], harness.request("reset", session="work")["epoch"]]
    harness.worker().send_interpreter_exited("SIGSEGV")
    seen.append(harness.finish(harness.eval())["epoch"])
    harness.request("close", session="work")
    seen.append(harness.open("work")["epoch"])
    assert seen == [1, 2, 3, 4]
    assert harness.open("other")["epoch"] == 1


def test_what_is_told_is_saved_before(harness: CoreHarness) -> None:
    """A broker that is killed between two effects has sent nothing that is not saved: records come first."""
    highest = {"work": 0}
    do = harness.apply

    def watching(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SaveRecords):
                epochs = [each.epoch for each in effect.records if isinstance(each, SessionRecord)]
                highest["work"] = max([highest["work"], *epochs])
            elif isinstance(effect, ToClient):
                assert msgspec.json.decode(bytes(effect.body)).get("epoch", 0) <= highest["work"]
        do(effects)

    harness.apply = watching  # type: ignore[method-assign]
    harness.eval("work", id="runs")
    harness.worker().send_interpreter_exited("SIGSEGV")
    harness.request("reset", session="work")
    harness.request("close", session="work")
    harness.open("work")
    assert (highest["work"], harness.final_reply("runs")["epoch"]) == (4, 2)


def test_an_eval_is_saved_once_when_it_starts_and_once_when_it_ends(harness: CoreHarness) -> None:
    harness.open("work")
    before = len(harness.saved)
    for _ in range(10):
        harness.finish(harness.eval("work"))
    assert [type(each) for each in harness.saved[before:]] == [SavedEval, SavedProgress] * 10


def test_after_a_killed_broker_the_first_answer_says_lost_with_the_cause(
    harness: CoreHarness, new_harness: New
) -> None:
    for name in ("work", "opened"):
        harness.open(name)
    harness.request("reset", session="work")
    after = build_successor(harness, new_harness)
    conflict = after.request("eval", session="work", code="x", if_missing="create", expect_epoch=2)
    assert (conflict["status"][-1], conflict["epoch"], len(after.state.sessions)) == ("epoch-conflict", 3, 0)
    asked = after.eval("work", expect_epoch=3)
    first = after.replies[asked][0]
    assert (first["created"], first["epoch"], first["cause"]) == (True, 3, BROKER_ENDED)
    assert (
        after.worker().frames(FrameKind.ASSIGN)[0][1]["lost_cause"] == BROKER_ENDED
    )  # the worker says so at the end of the eval
    assert after.finish(asked)["epoch"] == 3
    opened = after.open("opened")
    assert (opened["created"], opened["epoch"], opened["state"], opened["cause"]) == (True, 2, "lost", BROKER_ENDED)
    assert after.worker("opened").frames(FrameKind.ASSIGN)[0][1]["lost_cause"] is None  # it is told once


def test_who_asks_for_a_session_of_the_broker_before_is_told_what_became_of_it(
    harness: CoreHarness, new_harness: New
) -> None:
    id = harness.open("work")["session"]
    nameless = harness.request("new-session")["session"]
    after = build_successor(harness, new_harness)
    for key in ("work", id, nameless):
        assert after.request("jobs", session=key)["cause"] == BROKER_ENDED
    after.core.set_identity(OTHER, "uid:1001")
    assert "cause" not in after.request("jobs", OTHER, session="work")
    assert new_harness().core.restore(harness.saved_state(), frozenset(), 0.0) == ["work", nameless]


def test_a_session_that_was_closed_on_purpose_is_not_lost_and_keeps_its_epochs(
    harness: CoreHarness, new_harness: New
) -> None:
    harness.open("work")
    harness.request("close", session="work")
    after = build_successor(harness, new_harness)
    opened = after.open("work")
    assert (opened["epoch"], "state" in opened, "cause" in opened) == (2, False, False)
    assert new_harness().core.restore(harness.saved_state(), frozenset(), 0.0) == []


def test_a_broker_that_ends_in_good_order_is_a_cause_as_well(harness: CoreHarness, new_harness: New) -> None:
    harness.open("work")
    harness.request("shutdown")
    assert harness.exits
    after = build_successor(harness, new_harness)
    opened = after.open("work")
    assert (opened["epoch"], opened["state"]) == (2, "lost")
    assert opened["cause"].startswith("the broker that had it ended: ")


def test_epochs_are_of_one_owner_and_project(harness: CoreHarness, new_harness: New) -> None:
    harness.core.set_identity(OTHER, "uid:1001")
    harness.open("work")
    harness.request("reset", session="work")
    assert harness.open("work", peer=OTHER)["epoch"] == 1
    assert [harness.open("default", project=project)["epoch"] for project in ("/a", "/b")] == [1, 1]
    harness.request("reset", session="default", project="/b")
    after = build_successor(harness, new_harness)
    after.core.set_identity(OTHER, "uid:1001")
    assert [after.open("work", peer=peer)["epoch"] for peer in (b"p1", OTHER)] == [3, 2]
    assert [after.open("default", project=project)["epoch"] for project in ("/a", "/b", "/c")] == [2, 3, 1]


def test_names_that_are_forgotten_begin_above_all_of_them(harness: CoreHarness) -> None:
    harness.core.restore(
        SavedState(
            0,
            [
                SessionRecord(owner="self", name=f"n{at}", id=f"i{at}", epoch=7 if at == 3 else 1, open=False)
                for at in range(MAX_CLOSED_SESSIONS + 5)
            ],
        ),
        frozenset(),
        harness.now,
    )
    floor, records = harness.core.export()
    assert len(records) == MAX_CLOSED_SESSIONS
    assert (floor, harness.open("n3")["epoch"], harness.open("n5")["epoch"]) == (7, 8, 2)


def test_who_is_handed_a_session_whose_name_it_knows_sees_a_higher_epoch(harness: CoreHarness) -> None:
    harness.core.set_identity(OTHER, "uid:1001")
    harness.open("work", peer=OTHER)
    for _ in range(4):
        harness.request("reset", OTHER, session="work")
    harness.request("close", OTHER, session="work")
    harness.finish(harness.eval("work", id="mine"))
    harness.eval("work", id="runs")
    busy = harness.request("transfer", session="work", who="uid:1001")
    assert busy["status"][-1] == "busy"
    harness.finish("runs")
    harness.request("transfer", session="work", who="uid:1001")
    asked = harness.send("eval", OTHER, session="work", code="1", expect_epoch=6)
    assert harness.finish(asked)["epoch"] == 6
    read = harness.send("read", OTHER, session="work", eval_id=1)
    assert harness.worker().op_of(read) == "read"
    assert harness.request("reset", OTHER, session="work")["epoch"] == 7
    assert harness.open("work")["epoch"] == 2


@pytest.mark.parametrize("way", ["environment", "clone"])
def test_a_worker_that_comes_another_way_has_the_next_epoch(harness: CoreHarness, new_harness: New, way: str) -> None:
    harness.open("work")
    harness.open("copy")
    harness.request("close", session="copy")
    if way == "environment":
        assert harness.request("env", session="work", action="activate", path="/v")["epoch"] == 2
        assert build_successor(harness, new_harness).open("work")["epoch"] == 3
    else:
        asked = harness.send("clone", session="work", name="copy")
        harness.worker("work").send_snapshot(asked)
        assert harness.final_reply(asked)["epoch"] == 2
        assert build_successor(harness, new_harness).open("copy")["epoch"] == 3

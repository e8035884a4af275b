"""`find-eval`: an eval whose reply was lost ran, did not run, or that is unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness
from replwire.link import FrameKind, HelloBody

New = Callable[..., CoreHarness]
OTHER = b"p2"


def find(harness: CoreHarness, key: str = "k", instance: str | None = "0", **more: Any) -> tuple[str, dict[str, Any]]:
    answer = harness.request("find-eval", OTHER, idempotency_key=key, instance=instance, **more)
    return answer["outcome"], answer


def restart(harness: CoreHarness, instance: str = "1", **more: Any) -> None:
    """Go on with a broker of another instance."""
    harness.setup = dataclasses.replace(harness.setup, boot_id=instance)
    harness.restart(**more)


def test_an_eval_that_has_ended_ran(harness: CoreHarness) -> None:
    harness.finish(harness.eval(idempotency_key="k"))
    outcome, answer = find(harness)
    assert (outcome, answer["status"], answer["eval-id"], answer["name"]) == ("ran", ["done"], 1, "work")
    assert (answer["jobs"][0]["state"], answer["jobs"][0]["status"]) == ("done", ["done"])


def test_an_eval_that_runs_or_waits_counts_as_run(harness: CoreHarness) -> None:
    harness.eval(idempotency_key="first")
    harness.eval(idempotency_key="second")
    for key, state in (("first", "running"), ("second", "queued")):
        outcome, answer = find(harness, key)
        assert (outcome, answer["status"], answer["jobs"][0]["state"]) == ("ran", ["done", "running"], state)


def test_nothing_is_run_by_the_question(harness: CoreHarness) -> None:
    harness.open()
    assert find(harness)[0] == "did-not-run"
    assert [body for _, body in harness.worker().frames(FrameKind.REQUEST)] == []
    harness.finish(harness.eval(idempotency_key="k"))
    assert find(harness)[0] == "ran"


def test_an_eval_that_was_cancelled_before_its_turn_did_not_run(harness: CoreHarness) -> None:
    harness.eval()
    harness.eval(idempotency_key="k")
    harness.request("interrupt", session="work", interrupt_id=2)
    outcome, answer = find(harness)
    assert (outcome, answer["jobs"][0]["status"]) == ("did-not-run", ["done", "interrupted"])


@pytest.mark.parametrize("instance", [None, "another"])
def test_of_another_broker_nothing_is_known(harness: CoreHarness, instance: str | None) -> None:
    assert find(harness, instance=instance)[0] == "unknown"


def test_keys_of_others_are_not_found(harness: CoreHarness) -> None:
    harness.finish(harness.eval(idempotency_key="k", agent="ada"))
    assert find(harness)[0] == "did-not-run"
    assert find(harness, agent="ada")[0] == "ran"


def test_a_key_from_before_the_latest_that_was_dropped_is_unknown(new_harness: New) -> None:
    harness = new_harness(max_idempotency_keys=2)
    for key in "abc":
        harness.finish(harness.eval(idempotency_key=key))
        harness.wait(10)
    assert find(harness, "a")[0] == "unknown"
    assert find(harness, "a", age_ms=30_000)[0] == "unknown"
    assert find(harness, "lost", age_ms=29_000)[0] == "did-not-run"
    assert find(harness, "c")[0] == "ran"


def test_keys_that_clients_give_to_each_eval_are_dropped_before_those_of_callers(new_harness: New) -> None:
    harness = new_harness(max_idempotency_keys=3)
    harness.finish(harness.eval(idempotency_key="mine"))
    for number in range(5):
        harness.finish(harness.eval(id=f"own-{number}", idempotency_key=f"own-{number}"))
    assert [find(harness, key)[0] for key in ("mine", "own-2", "own-3", "own-4")] == ["ran", "unknown", "ran", "ran"]


def test_where_no_key_is_kept_every_outcome_is_unknown(new_harness: New) -> None:
    harness = new_harness(max_idempotency_keys=0)
    harness.finish(harness.eval(idempotency_key="k"))
    assert find(harness, age_ms=0)[0] == "unknown"


def test_the_next_broker_knows_what_the_one_before_has_run(harness: CoreHarness) -> None:
    harness.finish(harness.eval(idempotency_key="k"))
    restart(harness)
    for instance in "01":
        assert (find(harness, "k", instance)[0], find(harness, "lost", instance)[0]) == ("ran", "did-not-run")
    assert find(harness, "lost", "2")[0] == "unknown"
    restart(harness, "2")
    assert find(harness, "lost", "0")[0] == "did-not-run"


def test_the_next_broker_knows_which_keys_were_dropped(new_harness: New) -> None:
    harness = new_harness(max_idempotency_keys=1)
    for key in "ab":
        harness.finish(harness.eval(idempotency_key=key))
        harness.wait(10)
    for instance in "12":  # by the record of the drop, then by the list of a journal that was written anew
        restart(harness, instance)
        assert find(harness, "a", age_ms=20_000)[0] == "unknown"
        assert find(harness, "lost", age_ms=19_000)[0] == "did-not-run"


def test_an_eval_that_a_journal_has_half_is_unknown(harness: CoreHarness) -> None:
    harness.open()
    harness.eval()
    harness.eval(idempotency_key="k")
    restart(harness, come_back=False)
    worker = harness.worker()
    worker.send(FrameKind.HELLO, HelloBody("t", 2, harness.session().id, 1, 2))
    assert find(harness)[0] == "unknown"


@pytest.mark.parametrize(
    ("known", "expected"),
    [({}, None), ({"known_instance": "0"}, None), ({"known_instance": ""}, "0"), ({"known_instance": "9"}, "0")],
)
def test_a_client_learns_the_instance_that_it_does_not_know(
    harness: CoreHarness, known: dict[str, str], expected: str | None
) -> None:
    asked = harness.send("ping", **known)
    assert harness.replies[asked][0].get("instance") == expected
    assert harness.replies[asked][-1]["status"] == ["done", "pong"]

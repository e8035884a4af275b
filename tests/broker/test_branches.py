"""Branches: the source's worker finds a checkpoint in its turn, and serves the new session, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_harness import CoreHarness
from replwire import events
from replwire.link import FrameKind, Outcome


@pytest.fixture
def family(new_harness: Callable[..., CoreHarness]) -> CoreHarness:
    """A core with a session `work` and its branch `try`."""
    harness = new_harness(checkpoints=True)
    harness.open("work", cwd="/src", env=["A=1"])
    _branch(harness, "work", "try")
    return harness


def _branch(harness: CoreHarness, source: str, name: str, **fields: Any) -> dict[str, Any]:
    asked = harness.send("branch", session=source, name=name)
    harness.worker(source).send_branched(asked, **fields)
    return harness.final_reply(asked)


def test_a_branch_begins_with_a_checkpoint_and_is_served_by_the_process_of_its_source(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(checkpoints=True)
    harness.open("work", cwd="/src", env=["A=1"])
    answer = _branch(harness, "work", "try", checkpoint=3, evals=[1, 2], not_restored=["a socket"])
    source, branch = harness.session("work"), harness.session("try")
    assert (answer["new-session"], answer["branch-of"], answer["checkpoint"]) == (branch.id, source.id, 3)
    assert (answer["created"], answer["not-restored"], answer["epoch"]) == (True, ["a socket"], 1)
    assert harness.branched_from == {harness.worker("try").number: (harness.worker("work").number, 3)}
    assert harness.worker("try").process == harness.worker("work").process
    assignment = harness.worker("try").frames(FrameKind.ASSIGN)[0][1]
    assert (assignment["session"], assignment["cwd"]) == (branch.id, "/src")
    begun = next(each for each in harness.events if isinstance(each, events.SessionBranched))
    assert (begun.session, begun.source, begun.checkpoint, begun.evals) == (branch.id, source.id, 3, [1, 2])
    entry = next(each for each in harness.request("ls-sessions")["sessions"] if each["name"] == "try")
    assert entry["branch-of"] == source.id
    assert harness.is_idle()


def test_a_branch_waits_for_the_running_eval_of_its_source_and_has_a_queue_of_its_own(family: CoreHarness) -> None:
    running = family.eval("work")
    asked = family.send("branch", session="work", name="second")
    beside = family.eval("try")
    assert family.running_evals(running, asked, beside) == [running, beside]
    family.finish(running)
    family.worker("work").send_branched(asked)
    assert family.final_reply(asked)["name"] == "second"
    assert family.finish(beside)["worker"] == family.worker("try").number


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"session": "work"}, "invalid-request"),
        ({"name": "b"}, "invalid-request"),
        ({"session": "gone", "name": "b"}, "session-not-found"),
        ({"session": "work", "name": "work"}, "session-already-exists"),
        ({"session": "work", "name": "b b"}, "invalid-request"),
        ({"session": "work", "name": "b", "at": 0}, "invalid-request"),
        ({"session": "work", "name": "b", "wait_ms": 5}, "invalid-request"),
        ({"session": "work", "name": "b", "mode": "plan"}, "plan-mode"),
        ({"session": "work", "name": "b", "memory_limit": 5}, "invalid-request"),
    ],
)
def test_a_branch_that_cannot_be_is_refused_and_opens_nothing(
    new_harness: Callable[..., CoreHarness], fields: dict[str, Any], code: str
) -> None:
    harness = new_harness(checkpoints=True)
    harness.open("work")
    assert code in harness.request("branch", **fields)["status"]
    assert [each.name for each in harness.state.sessions] == ["work"]


def test_only_the_owner_may_branch(family: CoreHarness) -> None:
    family.core.set_identity(b"p2", "uid:7")
    family.request("share", session="work", who="uid:7", level="write")
    refused = family.request("branch", peer=b"p2", session=family.session("work").id, name="mine")
    assert "forbidden" in refused["status"]


def test_a_refusal_of_the_worker_opens_nothing(family: CoreHarness) -> None:
    asked = family.send("branch", session="work", name="second", at="gone")
    family.finish(asked, Outcome.ERROR, status=["done", "error", "checkpoint-not-found"])
    assert len(family.state.sessions) == 2


def test_a_branch_beyond_max_sessions_is_refused_and_the_source_goes_on(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(checkpoints=True, max_sessions=1)
    harness.open("work")
    assert "session-limit-reached" in _branch(harness, "work", "try")["status"]
    harness.finish(harness.eval("work"))
    assert harness.is_idle()


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("name", ["work", "try"])
def test_the_others_of_a_family_outlive_the_end_of_one(family: CoreHarness, end: str, name: str) -> None:
    process, other = family.worker("work").process, "try" if name == "work" else "work"
    running = family.eval(other)
    family.request(end, session=name)
    assert family.killed == []
    assert family.worker(other).process == process
    family.finish(running)
    if end == "reset":
        assert family.worker(name).process != process
    family.request("close", session=other)
    assert family.killed == [process]


def test_the_death_of_the_process_loses_every_session_that_it_serves(family: CoreHarness) -> None:
    asked = [family.eval("work"), family.eval("try")]
    family.worker("try").exit("killed by SIGKILL")
    for each in asked:
        answer = family.final_reply(each)
        assert (answer["status"], answer["state"]) == (["done", "error", "worker-lost"], "lost")
    processes = []
    for name in ("work", "try"):
        family.finish(family.eval(name))
        processes.append(family.worker(name).process)
    assert processes[0] != processes[1], "each has a sandbox of its own now"


def test_the_end_of_an_interpreter_loses_its_session_alone(family: CoreHarness) -> None:
    asked, beside = family.eval("work"), family.eval("try")
    family.worker("work").send_interpreter_exited("exit code 1")
    assert "worker-lost" in family.final_reply(asked)["status"]
    assert family.killed == []
    family.finish(beside)


def test_a_branch_that_does_not_start_says_so_and_is_gone(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(checkpoints=True, auto=False, worker_start_ms=1000)
    opening = harness.send("new-session", name="work")
    harness.workers[1].send_ready()
    harness.workers[1].send_assigned()
    harness.final_reply(opening)
    asked = harness.send("branch", session="work", name="try")
    harness.workers[1].send_branched(asked)
    harness.wait(2)
    assert "checkpoint-failed" in harness.final_reply(asked)["status"]
    assert [each.name for each in harness.state.sessions] == ["work"]
    assert harness.killed == []


def test_sharing_one_session_shares_its_family(family: CoreHarness) -> None:
    family.request("share", session="try", who="uid:7", level="read")
    assert family.session("work").shares == {"uid:7": "read"}
    _branch(family, "work", "second")
    assert family.session("second").shares == {"uid:7": "read"}
    family.request("share", session="work", who="uid:7", level="none")
    assert family.session("try").shares == {}


def test_a_transfer_waits_until_a_session_has_a_sandbox_of_its_own(family: CoreHarness) -> None:
    refused = family.request("transfer", session="work", who="uid:7")
    assert "busy" in refused["status"]
    assert "shares its sandbox with try" in refused["err"]
    family.request("reset", session="try")
    assert family.request("transfer", session="work", who="uid:7")["owner"] == "uid:7"


def test_a_branch_counts_for_the_agent_that_asked_for_it(
    new_harness: Callable[..., CoreHarness],
) -> None:
    harness = new_harness(checkpoints=True, agents='[[agents]]\nname = "eve"\nmax-sessions = 1')
    harness.open("work")
    harness.open("hers", agent="eve")
    asked = harness.send("branch", session="work", name="try", agent="eve")
    harness.worker("work").send_branched(asked)
    assert "session-limit-reached" in harness.final_reply(asked)["status"]


def test_all_sessions_of_a_family_outlive_their_broker(family: CoreHarness) -> None:
    running = family.eval("work")
    numbers = [family.worker(name).number for name in ("work", "try")]
    assert family.restart() == []
    assert [family.worker(name).number for name in ("work", "try")] == numbers
    assert family.worker("try").process == family.worker("work").process
    assert family.finish(family.eval("try"))["epoch"] == 1
    family.finish_abandoned(running)
    _branch(family, "try", "third")
    assert family.worker("third").process == family.worker("work").process


def test_a_branch_outlives_the_broker_also_without_its_source(family: CoreHarness) -> None:
    family.request("close", session="work")
    assert family.restart() == []
    assert family.finish(family.eval("try"))["epoch"] == 1
    family.request("close", session="try")
    assert family.processes == set()


def test_a_family_is_lost_together_when_its_process_has_died(family: CoreHarness) -> None:
    family.end_process(family.worker().process)
    assert sorted(family.restart()) == ["try", "work"]
    assert len(family.state.sessions) == 0


def test_a_branch_that_is_closed_before_it_has_come_back_is_told_then(family: CoreHarness) -> None:
    family.restart(come_back=False)
    family.request("close", session="try")
    assert list(family.leaving) == [2]
    family.come_back()
    assert family.leaving == {}
    assert family.finish(family.eval("work"))["epoch"] == 1


def test_a_branch_that_had_not_begun_is_lost_with_its_broker_and_told(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(checkpoints=True)
    harness.open("work")
    harness.auto = False
    asked = harness.send("branch", session="work", name="try")
    harness.worker().send_branched(asked)
    harness.auto = True
    assert harness.restart() == ["try"]
    assert [each.name for each in harness.state.sessions] == ["work"]
    assert harness.leaving == {}

"""A session moves to another environment, or nothing has changed. And workers by what they run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replbroker.core.effects import WorkerSpec
from replwire.identities import Principal
from replwire.link import AssignedBody, FrameKind

VENV = WorkerSpec("python", "/venv", principal=Principal(identity="self"))


def started(new_table: Callable[..., CoreHarness], **more: object) -> CoreHarness:
    """A session `work` whose worker is number 1; later workers do what the test says."""
    table = new_table(auto=False, **more)
    table.send("new-session", name="work", cwd="/src")
    table.workers[1].send_ready()
    table.workers[1].send_assigned()
    return table


def test_the_session_moves_when_the_other_worker_is_ready(new_table: Callable[..., CoreHarness]) -> None:
    table = started(new_table)
    asked = table.send("env", session="work", action="activate", path="/venv/")
    assert (table.specs[2], table.killed) == (VENV, [])
    waiting = table.eval(code="2")
    assert not table.running_evals(waiting)
    table.workers[2].send_ready()
    table.workers[2].send(FrameKind.ASSIGNED, AssignedBody(None, "/venv/bin/python"), epoch=2)
    answer = table.final_reply(asked)
    assert (answer["environment"], answer["executable"]) == ("/venv", "/venv/bin/python")
    assert (answer["epoch"], answer["state"]) == (2, "lost")
    assert table.killed == [1]
    assert table.workers[2].frames(FrameKind.ASSIGN)[0][1]["cwd"] == "/src"
    assert table.running_evals(waiting) == [waiting]
    table.finish(waiting)
    assert table.request("env", session="work", action="show")["executable"] == "/venv/bin/python"


def test_an_eval_for_the_epoch_before_the_move_does_not_run_after_it(new_table: Callable[..., CoreHarness]) -> None:
    table = started(new_table)
    asked = table.send("env", session="work", action="activate", path="/venv")
    bound = table.eval(code="2", expect_epoch=1, idempotency_key="k")
    free = table.eval(code="3")
    table.workers[2].send_ready()
    table.workers[2].send(FrameKind.ASSIGNED, AssignedBody(None, "/venv/bin/python"), epoch=2)
    assert table.final_reply(asked)["epoch"] == 2
    answer = table.final_reply(bound)
    assert answer["status"] == ["done", "error", "epoch-conflict"]
    assert (answer["epoch"], answer["state"]) == (2, "lost")
    table.finish(free)
    table.finish(table.eval(code="2", expect_epoch=2, idempotency_key="k"))
    assert table.is_idle()


def test_an_environment_that_is_none_changes_nothing(new_table: Callable[..., CoreHarness]) -> None:
    table = started(new_table)
    asked = table.send("env", session="work", action="activate", path="/nowhere")
    waiting = table.eval(code="2")
    table.workers[2].send_interpreter_exited("no Python environment at /nowhere")
    answer = table.final_reply(asked)
    assert answer["status"] == ["done", "error", "environment-failed"]
    assert "nothing has changed" in answer["err"]
    assert "/nowhere" in answer["err"]
    assert (table.session().worker, table.session().epoch) == (1, 1)
    assert table.running_evals(waiting) == [waiting]
    table.finish(waiting)
    assert table.is_idle()


def test_an_environment_that_never_answers_changes_nothing(new_table: Callable[..., CoreHarness]) -> None:
    table = started(new_table, worker_start_ms=1000)
    asked = table.send("env", session="work", action="activate", path="/slow")
    table.wait(1.5)
    assert "environment-failed" in table.final_reply(asked)["status"]
    assert table.session().worker == 1
    table.finish(table.eval())


@pytest.mark.parametrize("end", ["reset", "close"])
def test_a_session_that_is_reset_or_closed_meanwhile_does_not_move(
    new_table: Callable[..., CoreHarness], end: str
) -> None:
    table = started(new_table)
    asked = table.send("env", session="work", action="activate", path="/venv")
    table.send(end, session="work")
    assert "error" in table.final_reply(asked)["status"]
    late = table.workers[2]
    late.send_ready()
    assert late.frames(FrameKind.ASSIGN) == []
    assert 2 in table.killed


def test_the_environment_survives_a_reset_and_a_loss(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(runtimes=("python", "node"))
    table.open("work", runtime="/venv")
    table.request("reset", session="work")
    assert table.specs[table.worker().number] == VENV
    table.worker().exit()
    table.finish(table.eval())
    assert table.specs[table.worker().number] == VENV
    entry = table.request("ls-sessions")["sessions"][0]
    assert (entry["runtime"], entry["environment"]) == ("python", "/venv")


def test_a_session_that_is_in_use_does_not_move(table: CoreHarness) -> None:
    running = table.eval()
    assert "busy" in table.request("env", session="work", action="activate", path="/venv")["status"]
    table.finish(running)
    assert table.request("env", session="work", action="activate", path="/venv")["epoch"] == 2
    assert table.request("env", session="work", action="deactivate")["epoch"] == 3
    assert table.session().spec == WorkerSpec("python")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"action": "activate"}, "invalid-request"),
        ({"action": "activate", "path": "venv"}, "invalid-request"),
        ({"action": "activate", "path": "@a/b"}, "forbidden"),
        ({"action": "activate", "path": "@../b"}, "invalid-request"),
        ({"action": "activate", "path": "/" + "x" * 4100}, "invalid-request"),
        ({"action": "add"}, "invalid-request"),
        ({"action": "remove", "packages": []}, "invalid-request"),
        ({"action": "dance"}, "invalid-request"),
    ],
)
def test_an_env_request_that_makes_no_sense_is_refused(
    table: CoreHarness, fields: dict[str, object], word: str
) -> None:
    table.open("work")
    assert word in table.request("env", session="work", **fields)["status"]
    table.finish(table.eval())


def test_packages_take_their_turn_as_an_eval_does(table: CoreHarness) -> None:
    running = table.eval()
    asked = table.send("env", session="work", action="add", packages=["six"])
    assert not table.running_evals(asked)
    table.finish(running)
    assert table.running_evals(asked) == [asked]
    table.finish(asked)
    jobs = table.request("jobs", session="work")["jobs"]
    assert [job["code"] for job in jobs] == ["1", "env add six"]
    assert table.request("history", session="work")["count"] == 1


def test_only_python_has_environments(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(runtimes=("python", "node"))
    table.open("js", runtime="node")
    assert table.specs[table.worker("js").number] == WorkerSpec("node")
    for action in ("show", "activate", "list"):
        assert "not-supported" in table.request("env", session="js", action=action, path="/venv")["status"]


def test_of_another_runtime_one_is_kept_warm_while_a_session_has_it(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(warm=2, runtimes=("python", "node"))
    assert list(table.specs.values()) == [WorkerSpec("python")] * 2
    table.open("js", runtime="node")
    table.wait(0.1)
    assert list(table.specs.values()).count(WorkerSpec("node")) == 2
    table.request("reset", session="js")
    table.wait(0.1)
    assert table.core.scheduler.pool.count_by_state() == {"starting": 0, "warm": 3, "claimed": 1}
    table.request("close", session="js")
    table.wait(0.1)
    assert table.core.scheduler.pool.count_by_state() == {"starting": 0, "warm": 2, "claimed": 0}


def test_a_runtime_that_cannot_start_does_not_hold_up_another(new_table: Callable[..., CoreHarness]) -> None:
    table = new_table(auto=False, warm=1, runtimes=("python", "node"))
    table.workers[1].send_ready()
    asked = table.send("new-session", name="js", runtime="node")
    for number in range(2, 5):
        table.workers[number].exit("exited with code 127")
    assert "worker-lost" in table.final_reply(asked)["status"]
    opened = table.send("new-session", name="py")
    table.workers[1].send_assigned()
    assert table.final_reply(opened)["created"] is True
    table.wait(0.1)
    assert table.specs[table.spawned[-1]] == WorkerSpec("python")

"""Changes of a session's environment, which succeed or change nothing; and workers by their spec."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core_harness import CoreHarness
from replbroker.core.effects import WorkerSpec
from replwire.identities import Principal
from replwire.link import AssignedBody, FrameKind

VENV = WorkerSpec("python", "/venv", principal=Principal(identity="self"))


def started(new_harness: Callable[..., CoreHarness], **more: object) -> CoreHarness:
    """Return a harness with a session `work` on worker 1; later workers do nothing by themselves."""
    harness = new_harness(auto=False, **more)
    harness.send("new-session", name="work", cwd="/src")
    harness.workers[1].send_ready()
    harness.workers[1].send_assigned()
    return harness


def test_the_session_moves_when_the_other_worker_is_ready(new_harness: Callable[..., CoreHarness]) -> None:
    harness = started(new_harness)
    asked = harness.send("env", session="work", action="activate", path="/venv/")
    assert (harness.specs[2], harness.killed) == (VENV, [])
    waiting = harness.eval(code="2")
    assert not harness.running_evals(waiting)
    harness.workers[2].send_ready()
    harness.workers[2].send(FrameKind.ASSIGNED, AssignedBody(None, "/venv/bin/python"), epoch=2)
    answer = harness.final_reply(asked)
    assert (answer["environment"], answer["executable"]) == ("/venv", "/venv/bin/python")
    assert (answer["epoch"], answer["state"]) == (2, "lost")
    assert harness.killed == [1]
    assert harness.workers[2].frames(FrameKind.ASSIGN)[0][1]["cwd"] == "/src"
    assert harness.running_evals(waiting) == [waiting]
    harness.finish(waiting)
    assert harness.request("env", session="work", action="show")["executable"] == "/venv/bin/python"


def test_an_eval_for_the_epoch_before_the_move_does_not_run_after_it(new_harness: Callable[..., CoreHarness]) -> None:
    harness = started(new_harness)
    asked = harness.send("env", session="work", action="activate", path="/venv")
    bound = harness.eval(code="2", expect_epoch=1, idempotency_key="k")
    free = harness.eval(code="3")
    harness.workers[2].send_ready()
    harness.workers[2].send(FrameKind.ASSIGNED, AssignedBody(None, "/venv/bin/python"), epoch=2)
    assert harness.final_reply(asked)["epoch"] == 2
    answer = harness.final_reply(bound)
    assert answer["status"] == ["done", "error", "epoch-conflict"]
    assert (answer["epoch"], answer["state"]) == (2, "lost")
    harness.finish(free)
    harness.finish(harness.eval(code="2", expect_epoch=2, idempotency_key="k"))
    assert harness.is_idle()


def test_an_environment_that_is_none_changes_nothing(new_harness: Callable[..., CoreHarness]) -> None:
    harness = started(new_harness)
    asked = harness.send("env", session="work", action="activate", path="/nowhere")
    waiting = harness.eval(code="2")
    harness.workers[2].send_interpreter_exited("no Python environment at /nowhere")
    answer = harness.final_reply(asked)
    assert answer["status"] == ["done", "error", "environment-failed"]
    assert "nothing has changed" in answer["err"]
    assert "/nowhere" in answer["err"]
    assert (harness.session().worker, harness.session().epoch) == (1, 1)
    assert harness.running_evals(waiting) == [waiting]
    harness.finish(waiting)
    assert harness.is_idle()


def test_an_environment_that_never_answers_changes_nothing(new_harness: Callable[..., CoreHarness]) -> None:
    harness = started(new_harness, worker_start_ms=1000)
    asked = harness.send("env", session="work", action="activate", path="/slow")
    harness.wait(1.5)
    assert "environment-failed" in harness.final_reply(asked)["status"]
    assert harness.session().worker == 1
    harness.finish(harness.eval())


@pytest.mark.parametrize("end", ["reset", "close"])
def test_a_session_that_is_reset_or_closed_meanwhile_does_not_move(
    new_harness: Callable[..., CoreHarness], end: str
) -> None:
    harness = started(new_harness)
    asked = harness.send("env", session="work", action="activate", path="/venv")
    harness.send(end, session="work")
    assert "error" in harness.final_reply(asked)["status"]
    late = harness.workers[2]
    late.send_ready()
    assert late.frames(FrameKind.ASSIGN) == []
    assert 2 in harness.killed


def test_the_environment_survives_a_reset_and_a_loss(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(runtimes=("python", "node"))
    harness.open("work", runtime="/venv")
    harness.request("reset", session="work")
    assert harness.specs[harness.worker().number] == VENV
    harness.worker().exit()
    harness.finish(harness.eval())
    assert harness.specs[harness.worker().number] == VENV
    entry = harness.request("ls-sessions")["sessions"][0]
    assert (entry["runtime"], entry["environment"]) == ("python", "/venv")


def test_a_session_that_is_in_use_does_not_move(harness: CoreHarness) -> None:
    running = harness.eval()
    assert "busy" in harness.request("env", session="work", action="activate", path="/venv")["status"]
    harness.finish(running)
    assert harness.request("env", session="work", action="activate", path="/venv")["epoch"] == 2
    assert harness.request("env", session="work", action="deactivate")["epoch"] == 3
    assert harness.session().spec == WorkerSpec("python")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"action": "activate"}, "invalid-request"),
        ({"action": "activate", "path": "venv"}, "invalid-request"),
        ({"action": "activate", "path": "@a/b"}, "forbidden"),
        ({"action": "activate", "path": "@../b"}, "invalid-request"),
        ({"action": "activate", "path": "/" + "x" * 4100}, "invalid-request"),
        ({"action": "add"}, "invalid-request"),
        ({"action": "rm", "packages": []}, "invalid-request"),
        ({"action": "dance"}, "invalid-request"),
    ],
)
def test_an_env_request_that_makes_no_sense_is_refused(
    harness: CoreHarness, fields: dict[str, object], code: str
) -> None:
    harness.open("work")
    assert code in harness.request("env", session="work", **fields)["status"]
    harness.finish(harness.eval())


def test_packages_take_their_turn_as_an_eval_does(harness: CoreHarness) -> None:
    running = harness.eval()
    asked = harness.send("env", session="work", action="add", packages=["six"])
    assert not harness.running_evals(asked)
    harness.finish(running)
    assert harness.running_evals(asked) == [asked]
    harness.finish(asked)
    jobs = harness.request("jobs", session="work")["jobs"]
    assert [job["code"] for job in jobs] == ["1", "env add six"]
    assert harness.request("history", session="work")["count"] == 1


def test_packages_go_with_the_session_that_installed_them_and_clones_begin_with_them(harness: CoreHarness) -> None:
    session = harness.open("work")["session"]
    harness.finish(harness.send("env", session="work", action="status"))
    assert harness.egress_starts == 0
    harness.finish(harness.send("env", session="work", action="add", packages=["six"]))
    assert harness.egress_starts == 1
    copying = harness.send("clone", session="work", name="copy")
    harness.worker("work").send_snapshot(copying)
    copy = harness.final_reply(copying)["session"]
    assert harness.session("copy").packages_of == session
    harness.open("other")
    for name in ("work", "copy", "other"):
        harness.request("close", session=name)
    assert harness.packages_deleted == [session, copy]


def test_only_python_has_environments_and_bash_has_no_packages(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(runtimes=("python", "node", "bash"))
    harness.open("js", runtime="node")
    assert harness.specs[harness.worker("js").number] == WorkerSpec("node")
    for action in ("show", "activate", "test"):
        assert "not-supported" in harness.request("env", session="js", action=action, path="/venv")["status"]
    harness.open("sh", runtime="bash")
    assert "not-supported" in harness.request("env", session="sh", action="add", packages=["six"])["status"]


def test_of_another_runtime_one_is_kept_warm_while_a_session_has_it(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(warm=2, runtimes=("python", "node"))
    assert list(harness.specs.values()) == [WorkerSpec("python")] * 2
    harness.open("js", runtime="node")
    harness.wait(0.1)
    assert list(harness.specs.values()).count(WorkerSpec("node")) == 2
    harness.request("reset", session="js")
    harness.wait(0.1)
    assert harness.core.scheduler.pool.count_by_state() == {"starting": 0, "warm": 3, "assigned": 1}
    harness.request("close", session="js")
    harness.wait(0.1)
    assert harness.core.scheduler.pool.count_by_state() == {"starting": 0, "warm": 2, "assigned": 0}


def test_a_runtime_that_cannot_start_does_not_hold_up_another(new_harness: Callable[..., CoreHarness]) -> None:
    harness = new_harness(auto=False, warm=1, runtimes=("python", "node"))
    harness.workers[1].send_ready()
    asked = harness.send("new-session", name="js", runtime="node")
    for number in range(2, 5):
        harness.workers[number].exit("exited with code 127")
    assert "worker-lost" in harness.final_reply(asked)["status"]
    opened = harness.send("new-session", name="py")
    harness.workers[1].send_assigned()
    assert harness.final_reply(opened)["created"] is True
    harness.wait(0.1)
    assert harness.specs[harness.spawned[-1]] == WorkerSpec("python")

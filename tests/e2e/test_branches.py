"""Branches of sandboxed sessions, over the real wire and through the installed command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kit import TIMEOUT_S, BrokerProcess, Wire, close_sessions, is_alive, processes_with, wait_until
from sandboxed_kit import sandboxed_broker


@pytest.fixture(scope="module")
def own_broker() -> Iterator[BrokerProcess]:
    """A broker with sandboxed sessions, which goes without a trace."""
    with sandboxed_broker() as broker:
        yield broker


@pytest.fixture
def wire(own_broker: BrokerProcess) -> Iterator[Wire]:
    with own_broker.wire() as wire:
        yield wire
        close_sessions(wire)


def _branch(wire: Wire, name: str, source: str = "s", **fields: Any) -> Any:
    answer = wire.ask("branch", session=source, name=name, **fields)
    assert answer.status == ["done"], answer.messages
    return answer


def _pid(wire: Wire, session: str) -> int:
    return int(wire.ask("info", session=session)["info"]["pid"])


def test_a_branch_has_everything_and_goes_its_own_way(wire: Wire) -> None:
    wire.run("import json; open('/tmp/f', 'w').write('abcdef')\ndef double(n): return 2 * n")
    wire.run("x = [1]; f = open('/tmp/f'); f.read(2)")
    begun = _branch(wire, "try")
    source = wire.ask("info", session="s")["info"]
    assert (begun["branch-of"], begun["created"]) == (source["session"], True)
    assert wire.run("x.append(double(2)); x, f.read(2), json.dumps(1)", "try").value == "([1, 4], 'cd', '1')"
    assert wire.run("x, f.read(2)").value == "([1], 'cd')"
    branch = wire.ask("info", session="try")["info"]
    assert branch["branch-of"] == source["session"]
    assert branch["worker-pid"] == source["worker-pid"]
    assert branch["pid"] != source["pid"]
    assert [each["eval-id"] for each in wire.ask("history", session="try")["history"]] == [1]


def test_a_branch_begins_with_an_earlier_checkpoint_by_number_or_name(wire: Wire) -> None:
    wire.run("x = 1")
    number = wire.ask("checkpoint", session="s", name="clean")["checkpoint"]
    wire.run("x = 2")
    assert _branch(wire, "one", at=number)["checkpoint"] == number
    assert _branch(wire, "two", at="clean")["checkpoint"] == number
    assert [wire.run("x", name).value for name in ("one", "two", "s")] == ["1", "1", "2"]
    refused = wire.ask("branch", session="s", name="three", at="gone")
    assert refused.status == ["done", "error", "checkpoint-not-found"]
    assert "three" not in [each["name"] for each in wire.ask("ls-sessions")["sessions"]]


def test_the_first_eval_of_a_branch_can_be_undone_and_may_crash(wire: Wire) -> None:
    wire.run("x = [1]")
    _branch(wire, "try")
    wire.ask("close", session="s")  # the copy that both began with stays
    crashed = wire.run("x.append(2); import os; os.abort()", "try")
    assert (crashed["state"], crashed["undone-evals"]) == ("rolled-back", [1])
    assert wire.run("x.append(3); x", "try").value == "[1, 3]"
    assert wire.ask("rollback", session="try")["undone-evals"] == [2]
    assert wire.run("x", "try").value == "[1]"


def test_branches_run_at_once_and_each_is_interrupted_alone(wire: Wire) -> None:
    wire.run("x = 1")
    for name in ("a", "b"):
        _branch(wire, name)
    running = [wire.send("eval", session=name, code="print(1, flush=True)\nwhile True: pass") for name in ("s", "a")]
    for each in running:
        next(message for message in wire.messages(each) if "out" in message)
    assert wire.run("x", "b").value == "1"
    wire.ask("interrupt", session="a")
    assert "interrupted" in wire.answer(running[1]).status
    assert wire.ask("jobs", session="s")["jobs"][-1]["state"] == "running"
    wire.ask("interrupt", session="s")
    assert "interrupted" in wire.answer(running[0]).status
    assert [wire.run("x", name)["state"] for name in ("s", "a", "b")] == ["kept"] * 3


def test_a_crash_of_one_goes_back_to_its_own_checkpoint_and_reaches_nobody_else(wire: Wire) -> None:
    wire.run_checkpointed("x = [1]")
    _branch(wire, "try")
    wire.run_checkpointed("x.append('try')", "try")
    wire.run_checkpointed("x.append('s')")
    crashed = wire.run("import os; os.abort()", "try")
    assert (crashed["state"], crashed["undone-evals"]) == ("rolled-back", [2])
    assert wire.run("x", "try").value == "[1, 'try']"
    assert wire.ask("rollback", session="s")["undone-evals"] == [3]
    assert wire.run("x").value == "[1]"
    assert wire.run("x", "try")["epoch"] == crashed["epoch"]


def test_a_rollback_ends_what_its_own_evals_have_started_and_nothing_of_a_branch(wire: Wire) -> None:
    start = "import subprocess; p = subprocess.Popen(['sleep', '{}']); p.pid"
    wire.run("x = 1")
    wire.ask("checkpoint", session="s", name="clean")
    _branch(wire, "try")
    wire.run(start.format("1000.25"), "try")
    wire.run(start.format("1000.75"))
    back = wire.ask("rollback", session="s", to="clean")
    assert any("1000.75" in each for each in back["not-restored"])
    wait_until(lambda: not processes_with("1000.75"), "what was undone has ended")
    assert processes_with("1000.25")
    assert wire.run("p.poll()", "try").value == "None"
    wire.ask("close", session="try")
    wait_until(lambda: not processes_with("1000.25"), "what the branch has started ends with it")
    assert wire.run("x").value == "1"


@pytest.mark.parametrize("end", ["close", "reset"])
def test_branches_outlive_their_source_and_the_sandbox_ends_with_the_last(
    wire: Wire, own_broker: BrokerProcess, end: str
) -> None:
    wire.run("x = 1; open('/tmp/shared', 'w').write('here')")
    _branch(wire, "a")
    _branch(wire, "b", "a")
    inside = {_pid(wire, name) for name in ("s", "a", "b")}
    worker = wire.ask("info", session="a")["info"]["worker-pid"]
    wire.ask(end, session="s")
    assert wire.run("x, open('/tmp/shared').read()", "a").value == "(1, 'here')"
    if end == "reset":
        assert wire.run("'x' in globals(), __import__('os').path.exists('/tmp/shared')").value == "(False, False)"
    wire.ask("close", session="a")
    assert wire.run("x", "b").value == "1"
    assert is_alive(worker)
    wire.ask("close", session="b")
    wait_until(lambda: not any(map(is_alive, {worker, *inside})), "the sandbox has ended")
    assert own_broker.pid in own_broker.process_tree()


def test_a_killed_worker_loses_the_whole_family_and_leaves_nothing(wire: Wire) -> None:
    wire.run("x = 1")
    _branch(wire, "try")
    inside = {_pid(wire, name) for name in ("s", "try")}
    os.kill(wire.ask("info", session="s")["info"]["worker-pid"], signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, inside)), "the interpreters have ended")
    wait_until(lambda: {each["state"] for each in wire.ask("ls-sessions")["sessions"]} == {"vacant"}, "that is known")
    for name in ("s", "try"):
        answer = wire.run("'x' in globals()", name)
        assert (answer.value, answer["state"]) == ("False", "lost")


def test_a_branch_that_kills_all_it_can_harms_its_own_family_at_most(wire: Wire) -> None:
    wire.run("x = 1", "other")
    wire.run("x = 1")
    _branch(wire, "try")
    wire.run("import os, signal; os.kill(-1, signal.SIGKILL)", "try")
    assert wire.run("x", "other")["state"] == "kept"
    answer = wire.run("1")
    assert answer["state"] in ("kept", "lost", "rolled-back")
    assert wire.run("2").value == "2"
    assert wire.run("3", "try").value == "3"


def test_code_that_ignores_its_interrupt_costs_its_own_branch_one_eval(wire: Wire) -> None:
    epoch = wire.run("x = 1")["epoch"]
    _branch(wire, "try")
    wire.run_checkpointed("y = 2", "try")
    deaf = (
        "import time\nwhile True:\n    try:\n        while True: time.sleep(0.01)\n    except KeyboardInterrupt: pass"
    )
    ended = wire.run(deaf, "try", timeout_ms=300)
    assert (ended.status, ended["state"]) == (["done", "error", "timeout"], "rolled-back")
    assert wire.run("x, y", "try").value == "(1, 2)"
    assert wire.run("x")["epoch"] == epoch


def test_a_branch_without_a_checkpoint_that_dies_is_lost_alone(start: Any) -> None:
    broker = start("session.checkpoints=manual", sandbox=True)
    with broker.wire() as wire:
        wire.run("x = 1")
        _branch(wire, "try")
        crashed = wire.run("y = 2; import os; os.abort()", "try")
        assert (crashed["state"], crashed["checkpoint"]) == ("rolled-back", 1), "it goes back to its beginning"
        wire.ask("drop-checkpoint", session="try", checkpoint=1)
        assert wire.run("import os; os.abort()", "try")["state"] == "lost"
        assert wire.run("x").value == "1"
        assert wire.run("'x' in globals()", "try").value == "False"
    family = broker.process_tree()
    broker.kill()
    wait_until(lambda: not any(map(is_alive, family)), "all has ended with the broker")


def test_where_there_are_no_checkpoints_there_are_no_branches(start: Any) -> None:
    broker = start("session.checkpoints=off", sandbox=True)
    with broker.wire() as wire:
        wire.run("x = 1")
        refused = wire.ask("branch", session="s", name="try")
        assert refused.status == ["done", "error", "not-supported"]
        assert "switched off" in refused["err"]


def test_the_sum_of_a_family_counts_against_the_limit_and_its_largest_ends(start: Any) -> None:
    broker = start(f"sandbox.memory-bytes={256 << 20}", sandbox=True)
    with broker.wire() as wire:
        wire.run_checkpointed("x = 1")
        _branch(wire, "try")
        wire.run_checkpointed("held = b'x' * (60 << 20)")
        grow = "import mmap\nheld = mmap.mmap(-1, 400 << 20)\nwhile True: held.write(bytes(1 << 20))"
        ended = wire.run(grow, "try")
        assert "worker-lost" in ended.status
        assert "256 MiB" in ended["cause"]
        assert wire.run("len(held) >> 20").value == "60"
        assert wire.run("x", "try").value == "1"


# --- the installed command ---


def _command(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = broker.environ | {"REPLCTL_ENDPOINT": broker.endpoint}
    command = [sys.executable, "-m", "replctl", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_command_branches_and_says_from_where(wire: Wire, own_broker: BrokerProcess) -> None:
    wire.run("x = 1")
    wire.ask("checkpoint", session="s", name="clean")
    wire.run("x = 2")
    begun = _command(own_broker, "branch", "s", "try", "--at", "clean")
    assert (begun.returncode, begun.stdout) == (0, "try\n"), begun.stderr
    assert "session 'try' begins with checkpoint" in begun.stderr
    shown = json.loads(_command(own_broker, "branch", "s", "again", "--json").stdout)
    assert shown["branch-of"] == wire.ask("info", session="s")["info"]["session"]
    assert _command(own_broker, "eval", "-s", "try", "x").stdout == "1\n"
    refused = _command(own_broker, "branch", "s", "try")
    assert refused.returncode == 4
    assert "exists" in refused.stderr


def test_a_prompt_opens_a_branch_and_stays_in_its_session(wire: Wire, own_broker: BrokerProcess) -> None:
    environ = own_broker.environ | {"REPLCTL_ENDPOINT": own_broker.endpoint}
    ended = subprocess.run(
        [sys.executable, "-m", "replctl", "attach", "s"],
        input="x = 1\n/branch\n/branch try\nx = 2\nx\n",
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "/branch needs a name for the new session" in ended.stdout
    assert "session try begins with checkpoint" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "2"
    assert [wire.run("x", name).value for name in ("s", "try")] == ["2", "1"]


def test_a_replay_of_a_branch_begins_with_what_it_contains_of_its_sources(
    wire: Wire, own_broker: BrokerProcess
) -> None:
    wire.run("x = [1]", "root")
    wire.run("x.append('undone')", "root")
    number = wire.ask("ls-checkpoints", session="root")["checkpoints"][0]["checkpoint"]
    wire.ask("rollback", session="root", to=number)
    wire.run("x = [2]", "root")
    _branch(wire, "middle", "root")
    wire.run("x.append('not in the branch')", "root")
    wire.run("x.append(3)", "middle")
    _branch(wire, "leaf", "middle")
    wire.run("x.append(4); x", "leaf")

    def replayed() -> dict[str, Any]:
        ended = _command(own_broker, "replay", "leaf", "--into", "again", "--json")
        return dict(json.loads(ended.stdout)) if ended.stdout else {}

    def is_whole() -> bool:  # transcripts are written some time after the answers
        wire.ask("close", session="again")
        return replayed().get("ran") == 3

    wait_until(is_whole, "the transcripts have all evals")
    assert wire.run("x", "again").value == "[2, 3, 4]"

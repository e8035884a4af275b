"""Checkpoints, rollbacks and crashes of sandboxed sessions, over the real wire and through the installed command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import TIMEOUT_S, BrokerProcess, Wire, close_sessions, is_alive, wait_until
from live_processes import look_at_each, parent_of
from replworker.checkpoints.sentences import why_not_copied
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


def _checkpoints(wire: Wire, session: str = "s") -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = wire.ask("ls-checkpoints", session=session).get("checkpoints") or []
    return listed


def test_a_rollback_undoes_the_last_eval_and_says_so(wire: Wire) -> None:
    epoch = wire.run_checkpointed("x = [1]\nimport os, json\nos.chdir('/tmp')")["epoch"]
    wire.run_checkpointed("x.append(2); y = 1; os.chdir('/'); del json")
    back = wire.ask("rollback", session="s")
    assert (back["state"], back["undone-evals"], back["epoch"]) == ("rolled-back", [2], epoch + 1)
    after = wire.run("x, 'y' in globals(), os.getcwd(), json.dumps(1)")
    assert after.value == "([1], False, '/tmp', '1')"
    assert (after["eval-id"], after["epoch"], after["state"]) == (3, epoch + 1, "kept")


def test_the_first_eval_of_a_session_can_be_undone(wire: Wire) -> None:
    wire.run("x = 1")
    assert wire.ask("rollback", session="s")["undone-evals"] == [1]
    assert wire.run("'x' in globals()").value == "False"


@pytest.fixture
def placed() -> Iterator[dict[str, Any]]:
    """Fields of a request that opens a session with a directory and a variable of its own."""
    with tempfile.TemporaryDirectory(prefix="rpl-", dir="/tmp") as place:
        yield {"cwd": place, "env": ["GREETING=hello", "TZ=Asia/Tokyo"]}


_PLACE = "import os, time; os.getcwd(), os.environ['GREETING'], time.tzname[0]"
_MOVE = "import os; os.chdir('/'); os.environ['GREETING'] = os.environ['TZ'] = ''; time = os.times()"


def test_the_beginning_has_the_directory_and_the_variables_of_the_session(wire: Wire, placed: dict[str, Any]) -> None:
    wire.ask("new-session", name="s", **placed)
    begun = wire.run(_PLACE).value
    assert begun == f"('{placed['cwd']}', 'hello', 'JST')"
    wire.run(_MOVE)
    first = _checkpoints(wire)[0]
    assert (first["checkpoint"], first["eval-id"]) == (1, 0)
    wire.ask("rollback", session="s", to=1)
    assert wire.run(_PLACE).value == begun


def test_a_crash_in_the_first_eval_leaves_the_session_where_it_was_opened(wire: Wire, placed: dict[str, Any]) -> None:
    wire.ask("new-session", name="s", **placed)
    assert wire.run(f"{_MOVE}; os.abort()")["state"] == "rolled-back"
    assert wire.run(_PLACE).value == f"('{placed['cwd']}', 'hello', 'JST')"


def test_a_branch_of_the_beginning_has_its_directory_and_variables_too(wire: Wire, placed: dict[str, Any]) -> None:
    wire.ask("new-session", name="s", **placed)
    wire.run(_MOVE)
    assert wire.ask("branch", session="s", name="try", at=1).status == ["done"]
    begun = f"('{placed['cwd']}', 'hello', 'JST')"
    assert wire.run(_PLACE, "try").value == begun
    wire.run(_MOVE, "try")
    assert wire.ask("rollback", session="try", to=1)["state"] == "rolled-back"
    assert wire.run(_PLACE, "try").value == begun


def test_a_clone_begins_with_the_variables_of_its_source(wire: Wire) -> None:
    wire.run("x = 1")
    wire.ask("clone", session="s", name="copy")
    wire.run("1", "copy")
    wait_until(lambda: _checkpoints(wire, "copy"), "its first checkpoint")
    wire.ask("rollback", session="copy", to=1)
    assert wire.run("x", "copy").value == "1"


def test_a_rollback_that_would_undo_more_than_the_last_eval_is_refused_and_names_the_evals(wire: Wire) -> None:
    wire.ask("new-session", name="s")
    wire.ask("checkpoint", session="s", name="clean")
    for number in range(12):
        wire.run_checkpointed(f"x = {number}")
    while len(found := _checkpoints(wire)) > 1 and (last := found[-1])["eval-id"] > 11:
        wire.ask("drop-checkpoint", session="s", checkpoint=last["checkpoint"])
    refused = wire.ask("rollback", session="s")
    assert refused.status == ["done", "error", "checkpoint-not-found"]
    assert refused["undone-evals"] == [12, 13]
    assert wire.run("x").value == "11"
    back = wire.ask("rollback", session="s", to="clean")
    assert back["undone-evals"] == list(range(2, 15))
    assert wire.run("'x' in globals()").value == "False"


def test_a_session_goes_back_and_forward_again(wire: Wire) -> None:
    wire.run_checkpointed("x = 1")
    taken = wire.ask("checkpoint", session="s")["checkpoint"]
    wire.run_checkpointed("x = 2")
    later = wire.ask("checkpoint", session="s")["checkpoint"]
    assert wire.ask("rollback", session="s", to=taken)["undone-evals"] == [3]
    assert wire.run("x").value == "1"
    forward = wire.ask("rollback", session="s", to=later)
    assert (forward["undone-evals"], forward["redone-evals"]) == ([5], [3])
    assert wire.run("x").value == "2"
    marks = {each["eval-id"]: each["undone"] for each in wire.ask("history", session="s")["history"]}
    assert marks == {1: False, 3: False, 5: True, 6: False}
    assert wire.ask("rollback", session="s", to=taken)["undone-evals"] == [3, 6]


def test_a_rollback_interrupts_the_running_eval_and_ends_what_waits(wire: Wire) -> None:
    wire.run_checkpointed("x = 1")
    running = wire.send("eval", session="s", code="x = 2\nwhile True: pass")
    wait_until(lambda: wire.ask("jobs", session="s")["jobs"][-1]["state"] == "running", "it runs")
    queued = wire.send("eval", session="s", code="x = 3")
    back = wire.ask("rollback", session="s", to=_checkpoints(wire)[-1]["checkpoint"])
    ended, waited = wire.answer(running), wire.answer(queued)
    assert (ended.status, ended["state"]) == (["done", "interrupted"], "rolled-back")
    assert (waited.status, waited["state"]) == (["done", "error", "session-reset"], "rolled-back")
    assert back["undone-evals"] == [2]
    assert wire.run("x").value == "1"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import os; os._exit(3)", "code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
        ("import os; os.closerange(3, 200)", ""),
    ],
)
def test_a_crash_costs_the_eval_that_crashed_and_nothing_else(wire: Wire, code: str, cause: str) -> None:
    epoch = wire.run_checkpointed("x = {'a': [1, 2]}")["epoch"]
    crashed = wire.run(code)
    assert crashed.status == ["done", "error", "worker-lost"]
    assert (crashed["state"], crashed["undone-evals"], crashed["epoch"]) == ("rolled-back", [2], epoch + 1)
    assert cause in crashed["cause"]
    after = wire.run("x")
    assert (after.value, after["state"], after["epoch"]) == ("{'a': [1, 2]}", "kept", epoch + 1)


def test_code_that_ignores_its_interrupt_costs_itself(wire: Wire) -> None:
    wire.run_checkpointed("x = 1")
    code = (
        "import time\nwhile True:\n    try:\n        while True: time.sleep(0.01)\n    except KeyboardInterrupt: pass"
    )
    ended = wire.run(code, timeout_ms=300)
    assert ended.status == ["done", "error", "timeout"]
    assert (ended["state"], ended["undone-evals"]) == ("rolled-back", [2])
    assert wire.run("x").value == "1"


def test_a_crash_while_nobody_waits_is_said_by_the_next_result_once(wire: Wire) -> None:
    epoch = wire.run_checkpointed("x = 1")["epoch"]
    wire.run("import os, threading\nthreading.Timer(0.2, os.abort).start()")
    wait_until(lambda: wire.ask("ls-sessions")["sessions"][0]["epoch"] > epoch, "it has crashed")
    after = wire.run("x")
    assert (after["state"], "SIGABRT" in after["cause"]) == ("rolled-back", True)
    assert wire.run("x")["state"] == "kept"


def test_undone_evals_are_kept_with_a_mark_and_their_keys_answer_no_success(wire: Wire) -> None:
    wire.run_checkpointed("x = 1")
    wire.run_checkpointed("print('paid'); x = 2", idempotency_key="k")
    wire.ask("rollback", session="s")
    assert [each["undone"] for each in wire.ask("history", session="s")["history"]] == [False, True]
    read = wire.ask("read", session="s", eval_id=2)
    assert (read.out, read["undone"]) == ("paid\n", True)
    again = wire.run("print('paid'); x = 2", idempotency_key="k")
    assert again.status == ["done", "error", "idempotency-conflict"]


def test_what_a_crashed_eval_printed_can_be_read(wire: Wire) -> None:
    wire.run_checkpointed("x = 1")
    wire.run("print('before', flush=True)\nimport os; os.abort()")
    read = wire.ask("read", session="s", eval_id=2)
    assert read.out == "before\n"
    assert "worker-lost" in read.status


def test_names_and_numbers_of_checkpoints_are_checked(wire: Wire) -> None:
    wire.run("x = 1")
    assert wire.ask("checkpoint", session="s", name="clean").status == ["done"]
    assert "checkpoint-already-exists" in wire.ask("checkpoint", session="s", name="clean").status
    for reference in ("gone", 99):
        assert "checkpoint-not-found" in wire.ask("rollback", session="s", to=reference).status
        assert "checkpoint-not-found" in wire.ask("drop-checkpoint", session="s", checkpoint=reference).status
    entry = next(each for each in _checkpoints(wire) if each["checkpoint-name"])
    assert (entry["eval-id"], entry["automatic"], entry["current"]) == (1, False, True)
    dropped = wire.ask("drop-checkpoint", session="s", checkpoint="clean")
    assert dropped["checkpoint"] == entry["checkpoint"]
    assert "clean" not in [each["checkpoint-name"] for each in _checkpoints(wire)]


def test_at_the_limit_the_oldest_without_a_name_goes_and_named_ones_stay(wire: Wire) -> None:
    wire.run("x = 1")
    for number in range(8):
        assert wire.ask("checkpoint", session="s", name=f"n{number}").status == ["done"]
    refused = wire.ask("checkpoint", session="s", name="one-more")
    assert refused.status == ["done", "error", "checkpoint-limit-reached"]
    assert (refused["limit"], refused["limit-value"]) == ("max-checkpoints", 8)
    wire.ask("drop-checkpoint", session="s", checkpoint="n3")
    assert wire.ask("checkpoint", session="s", name="one-more").status == ["done"]


def test_subscribers_hear_of_automatic_checkpoints(wire: Wire) -> None:
    wire.run("x = 1")
    reply = wire.send("subscribe", session="s", types=["session/auto-checkpoint"])
    wire.until(reply, "subscribed")
    wire.run_checkpointed("x = 2")
    event = next(message["event"] for message in wire.messages(reply) if "event" in message)
    assert event["count"] >= 1
    assert event["checkpoint"] in [
        each["checkpoint"] for each in wire.ask("ls-checkpoints", session="s")["checkpoints"]
    ]


def test_subscribers_hear_of_checkpoints_and_rollbacks(wire: Wire) -> None:
    wire.run("x = 1")
    reply = wire.send("subscribe", session="s", types=["session/"])
    wire.until(reply, "subscribed")
    wire.ask("checkpoint", session="s", name="clean")
    wire.run_checkpointed("x = 2")
    wire.ask("rollback", session="s", to="clean")
    wire.run("1")
    wire.run("import os; os.abort()")
    wire.ask("close", session="s")
    events = [message["event"] for message in wire.messages(reply) if "event" in message]
    results = {event["type"]: event for event in events}
    assert results["session/checkpoint"]["name"] == "clean"
    first, second = [event for event in events if event["type"] == "session/rolled-back"]
    assert (first["undone"], first.get("cause")) == ([3], None)
    assert (second["undone"][-1], "SIGABRT" in second["cause"]) == (5, True)
    assert "session/lost" not in results


def _processes_of(wire: Wire, broker: BrokerProcess) -> tuple[int, set[int]]:
    """Return the pid of the session's worker, and those of all processes in its sandbox."""
    interpreter = wire.ask("info", session="s")["info"]["pid"]
    family = broker.process_tree()
    holder = parent_of(interpreter)
    parents = look_at_each(family, parent_of, at_least=4)
    inside = {pid for pid, parent in parents.items() if pid != holder and parent == holder}
    while b"bwrap" not in Path(f"/proc/{holder}/cmdline").read_bytes():
        holder = parent_of(holder)
    return parent_of(holder), inside


@pytest.mark.parametrize("end", ["close", "reset", "kill"])
def test_no_copy_outlives_its_session_its_reset_or_its_worker(wire: Wire, own_broker: BrokerProcess, end: str) -> None:
    for number in range(3):
        wire.run_checkpointed(f"x = {number}")
    worker, inside = _processes_of(wire, own_broker)
    assert len(inside) >= 4
    if end == "kill":
        os.kill(worker, signal.SIGKILL)
        assert wire.run("1")["state"] == "lost"
    else:
        wire.ask(end, session="s")
    wait_until(lambda: not any(map(is_alive, inside)), "the copies have ended")


def test_checkpoints_that_are_off_are_refused_and_a_crash_loses_the_state(
    start: Any,
) -> None:
    broker = start("session.checkpoints=off", sandbox=True)
    with broker.wire() as wire:
        wire.run("x = 1")
        assert "not-supported" in wire.ask("checkpoint", session="s").status
        assert wire.ask("ls-checkpoints", session="s")["checkpoints"] == []
        assert wire.run("import os; os.abort()")["state"] == "lost"
        assert wire.run("'x' in globals()").value == "False"


def test_a_runtime_that_cannot_be_copied_says_why_and_what_to_do(wire: Wire) -> None:
    wire.run("x=1", session="sh", runtime="bash")
    for op, fields in (("checkpoint", {}), ("branch", {"name": "try"})):
        refused = wire.ask(op, session="sh", **fields)
        assert refused.status == ["done", "error", "not-supported"]
        assert "a fork of bash is a subshell" in refused["err"]
        assert "clone or save it instead" in refused["err"]
    assert "a fork of bash is a subshell" in wire.ask("ls-checkpoints", session="sh")["checkpoints-off"]
    assert "a fork of bash is a subshell" in wire.ask("rollback", session="sh")["err"]
    assert why_not_copied("lisp") == "the runtime lisp takes no checkpoints"


def test_manual_checkpoints_are_taken_by_request_only(start: Any) -> None:
    broker = start("session.checkpoints=manual", sandbox=True)
    with broker.wire() as wire:
        wire.run("x = 1")
        wire.ask("checkpoint", session="s")
        wire.run("x = 2")
        wire.run("x = 3")
        assert len(_checkpoints(wire)) == 1
        crashed = wire.run("import os; os.abort()")
        assert (crashed["state"], crashed["undone-evals"]) == ("rolled-back", [3, 4, 5])
        assert wire.run("x").value == "1"


# --- the installed command ---


def _command(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = broker.environ | {"REPLCTL_ENDPOINT": broker.endpoint}
    command = [sys.executable, "-m", "replctl", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_the_command_keeps_lists_goes_back_and_says_what_was_undone(wire: Wire, own_broker: BrokerProcess) -> None:
    wire.run_checkpointed("x = 1")
    assert _command(own_broker, "checkpoint", "s", "--name", "clean").stdout.strip().isdigit()
    wire.run_checkpointed("x = 2")
    table = _command(own_broker, "checkpoints", "s").stdout
    assert "clean" in table
    assert "by request" in table
    listed = json.loads(_command(own_broker, "checkpoints", "s", "--json").stdout)["checkpoints"]
    assert [each["checkpoint-name"] for each in listed].count("clean") == 1
    back = _command(own_broker, "rollback", "s", "clean")
    assert back.returncode == 0
    assert "session 's' is back at checkpoint" in back.stderr
    assert "undone: eval 3" in back.stderr
    refused = _command(own_broker, "rollback", "s", "--to", "gone")
    assert refused.returncode == 4
    crashed = _command(own_broker, "eval", "-s", "s", "import os; os.abort()")
    assert crashed.returncode == 8
    assert "state rolled back to checkpoint" in crashed.stderr
    assert "undone: eval" in crashed.stderr
    dropped = _command(own_broker, "checkpoints", "s", "--drop", "clean")
    assert "dropped checkpoint" in dropped.stderr


def test_a_replay_follows_the_branch_that_was_kept(wire: Wire, own_broker: BrokerProcess, tmp_path: Path) -> None:
    wire.run_checkpointed("x = [1]")
    wire.run_checkpointed("x.append('undone')")
    wire.ask("rollback", session="s")
    wire.run("import os; os.abort()")
    wire.run("x.append(2); x")
    file = tmp_path / "s.jsonl"

    def is_written() -> bool:
        _command(own_broker, "export", "s", "--format", "jsonl", "-o", str(file))
        return file.exists() and "x.append(2); x" in file.read_text() and '"[1, 2]"' in file.read_text()

    wait_until(is_written, "the transcript has it")
    replayed = _command(own_broker, "replay", str(file), "--into", "again", "--json")
    report = json.loads(replayed.stdout)
    assert replayed.returncode == 0, replayed.stdout
    assert wire.ask("eval", session="again", code="x").value == "[1, 2]"
    assert "undone" in json.dumps(report)


def test_a_prompt_undoes_the_last_block(wire: Wire, own_broker: BrokerProcess) -> None:
    environ = own_broker.environ | {"REPLCTL_ENDPOINT": own_broker.endpoint}
    ended = subprocess.run(
        [sys.executable, "-m", "replctl", "attach", "s"],
        input="x = 1\n/undo\n'x' in globals()\n",
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    undone, value = ended.stdout.splitlines()
    assert undone.startswith("back at checkpoint 1, epoch ")
    assert undone.endswith("undone evals: 1")
    assert value == "False"
    assert wire.ask("history", session="s")["history"][0]["undone"] is True

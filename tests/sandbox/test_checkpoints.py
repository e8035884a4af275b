"""Checkpoints of a session in its sandbox: what comes back, what is said not to, and that nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable

import pytest

from checkpoint_kit import CheckpointedSession, SessionDied, status_of
from replwire.limits import Limits
from sandbox_kit import has_exited

Begin = Callable[..., CheckpointedSession]


def test_names_imports_history_directory_and_environment_come_back(open_session: Begin) -> None:
    session = open_session()
    session.value("import os, collections; d = {'a': [1]}; os.environ['MINE'] = 'before'; os.chdir('/tmp'); 41 + 1")
    number = session.take_checkpoint()
    session.value("import json; d['a'].append(2); del collections; os.environ['MINE'] = 'after'; os.chdir('/'); 7")
    result = session.roll_back(number)
    assert (result.checkpoint, result.cause, result.undone) == (number, None, [3])
    assert session.value("(d, _, os.environ['MINE'], os.getcwd(), 'json' in dir(), collections.__name__)") == (
        "({'a': [1]}, 42, 'before', '/tmp', False, 'collections')"
    )


def test_a_checkpoint_can_be_gone_back_to_again_and_again(open_session: Begin) -> None:
    session = open_session()
    session.value("x = []")
    number = session.take_checkpoint()
    for turn in range(10):
        assert session.value(f"x.append({turn}); x") == f"[{turn}]"
        session.roll_back(number)


def test_checkpoints_of_an_undone_line_stay_and_can_be_gone_to(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    first = session.take_checkpoint()
    session.value("x = 2")
    second = session.take_checkpoint("second")
    session.roll_back(first)
    assert session.value("x") == "1"
    assert session.roll_back("second").redone == [3]
    assert session.value("x") == "2"
    assert [(each["checkpoint"], each["current"]) for each in session.checkpoints()] == [(first, False), (second, True)]


def test_undo_is_refused_where_it_would_undo_more_and_names_what(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    session.take_checkpoint()
    session.value("x = 2")
    session.value("x = 3")
    answer = session.done(session.ask("rollback"))
    assert answer["status"] == ["done", "error", "checkpoint-not-found"]
    assert answer["undone-evals"] == [3, 4]
    assert "would undo the evals 3, 4" in answer["err"]
    assert session.value("x") == "3"


def test_undo_interrupts_the_running_eval(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    session.take_checkpoint()
    session.start("x = 2\nwhile True: pass")
    result = session.roll_back()
    assert result.undone == [3]
    assert session.value("x") == "1"


def test_output_of_an_undone_eval_can_still_be_read_and_is_marked(open_session: Begin) -> None:
    session = open_session()
    session.take_checkpoint()
    running = session.start("print('so far', flush=True)\nwhile True: pass")
    session.until(lambda: any("out" in reply for reply in session._replies[running]))
    session.roll_back()
    read = session.done(session.ask("read", **{"eval-id": 2}))
    assert read["out"] == "so far\n"
    assert read["undone"] is True
    assert read["state"] == "rolled-back"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import os; os.abort()", "the interpreter was killed by SIGABRT (signal 6)"),
        ("import ctypes; ctypes.string_at(0)", "the interpreter was killed by SIGSEGV (signal 11)"),
        ("import os; os._exit(3)", "the interpreter exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "the interpreter was killed by SIGKILL (signal 9)"),
        (
            "import os; os.write(3, b'not a frame at all' * 100); import time; time.sleep(60)",
            "protocol: the interpreter",
        ),
        ("import os, time; os.close(3); time.sleep(60)", "the interpreter closed its control channel"),
    ],
)
def test_a_crash_costs_what_came_after_the_newest_checkpoint(open_session: Begin, code: str, cause: str) -> None:
    session = open_session()
    session.value("x = [1]")
    session.take_checkpoint()
    session.value("x.append(2)")
    session.start(code)
    session.until(lambda: bool(session.rollbacks))
    result = session.rollbacks[-1]
    assert result.cause is not None
    assert result.cause.startswith(cause)
    assert (result.undone, result.last_eval, result.eval_id) == ([3, 4], 4, 1)
    answer = session.eval("x")
    assert (answer["value"], answer["state"], answer["checkpoint"]) == ("[1]", "rolled-back", 1)
    assert session.eval("x")["state"] == "kept"


def test_a_crash_between_evals_is_told_with_the_next_answer(open_session: Begin) -> None:
    session = open_session()
    session.take_checkpoint()
    session.value("import os, threading; threading.Timer(0.05, os.abort).start()")
    session.until(lambda: bool(session.rollbacks))
    answer = session.eval("1")
    assert (answer["state"], answer["cause"]) == ("rolled-back", "the interpreter was killed by SIGABRT (signal 6)")


def test_code_that_ignores_its_interrupt_is_killed_and_its_state_goes_back(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    session.take_checkpoint()
    route = session.start("x = 2\nwhile True:\n    try:\n        while True: pass\n    except BaseException: pass")
    session.cancel(route, limit_ms=100, kill="ignored its interrupt")
    session.until(lambda: bool(session.rollbacks))
    assert session.rollbacks[-1].cause == "ignored its interrupt"
    assert session.value("x") == "1"


def test_without_a_checkpoint_a_crash_ends_the_session(open_session: Begin) -> None:
    session = open_session()
    session.start("import os; os.abort()")
    with pytest.raises(SessionDied, match="SIGABRT"):
        session.until(lambda: False)


def test_a_copy_that_was_killed_is_passed_over(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    session.take_checkpoint()
    session.value("x = 2")
    session.take_checkpoint()
    session.value(
        "import os, signal\n"
        "mine = [int(n) for n in os.listdir('/proc') if n.isdecimal() and int(n) not in (1, os.getpid())]\n"
        "os.kill(max(mine), signal.SIGKILL)"
    )
    session.until(lambda: len(session.checkpoints()) == 1)
    session.start("import os; os.abort()")
    session.until(lambda: bool(session.rollbacks))
    assert session.value("x") == "1"


def test_a_copy_that_was_stopped_goes_on(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    session.take_checkpoint()
    session.value(
        "import os, signal\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdecimal() and int(name) not in (1, os.getpid()): os.kill(int(name), signal.SIGSTOP)\n"
        "x = 2"
    )
    session.roll_back(1)
    assert session.value("x") == "1"


def test_frames_of_the_killed_interpreter_and_of_the_old_epoch_reach_nobody(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    session.take_checkpoint()
    session.has_resumed = False
    session.start("import os; os.abort()")
    session.until(lambda: bool(session.rollbacks))
    late = session.start("x = 'must not run'")  # the broker sent it before it knew
    session.settle()
    session.has_resumed = True
    session.resume()
    assert session.value("x") == "1"
    assert session._replies[late] == []


def test_an_interpreter_that_dies_before_the_broker_knows_of_the_rollback_is_told_after(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    session.take_checkpoint()
    session.has_resumed = False
    session.roll_back(1)
    session.until(lambda: not session.loop._session.is_starting)
    os.kill(session.child.pid, signal.SIGKILL)
    session.settle()
    session.has_resumed = True
    session.resume()
    session.until(lambda: len(session.rollbacks) == 2)
    assert session.rollbacks[-1].cause == "the interpreter was killed by SIGKILL (signal 9)"
    assert session.value("x") == "1"


# --- what only one process may have ---


def test_a_waiting_copy_keeps_no_pipe_socket_or_port_open(open_session: Begin) -> None:
    session = open_session()
    session.value(
        "import os, socket, subprocess\n"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)\n"
        "server = socket.create_server(('127.0.0.1', 0)); port = server.getsockname()[1]\n"
        "a, b = socket.socketpair()"
    )
    answer = session.checkpoint()
    assert "sockets are closed: 3" in answer["not-restored"]
    assert "pipes are closed: 1" in answer["not-restored"]
    assert "child processes are killed: 1" in answer["not-restored"]
    assert session.value("child.stdin.close(); child.wait(5)") == "0"
    assert session.value("a.close(); b.recv(1)") == "b''"
    assert session.value("server.close(); socket.create_server(('127.0.0.1', port)).close()") == "None"


def test_file_positions_are_those_of_the_moment(open_session: Begin) -> None:
    session = open_session()
    session.value("f = open('/tmp/file', 'w+'); f.write('abcdef'); f.flush(); f.seek(2); f.read(1)")
    session.take_checkpoint()
    assert session.value("f.seek(0); f.read()") == "'abcdef'"
    session.roll_back(1)
    assert session.value("f.read()") == "'def'"


def test_children_are_killed_and_subprocess_knows(open_session: Begin) -> None:
    session = open_session()
    session.value("import subprocess; child = subprocess.Popen(['sleep', '1000'])")
    session.take_checkpoint()
    result = session.roll_back(1)
    assert result.not_restored == ["child processes are killed: 1", "processes were killed: sleep 1000"]
    assert session.value("child.poll()") == "-9"


def test_threads_are_named_and_do_not_come_back(open_session: Begin) -> None:
    session = open_session()
    session.value(
        "import threading, time; t = threading.Thread(target=time.sleep, args=(60,), name='ticker', daemon=True); t.start()"
    )
    assert session.checkpoint()["not-restored"] == ["threads do not come back: ticker"]
    session.roll_back(1)
    assert session.value("t.is_alive()") == "False"


def test_the_session_has_no_child_more_and_os_wait_is_as_before(open_session: Begin) -> None:
    session = open_session()
    session.value("import os")
    for _ in range(3):
        session.value("1")
        session.take_checkpoint()
    assert session.value("try: os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError: told = 'none'\ntold") == "'none'"


def test_random_numbers_after_a_rollback_are_those_after_the_checkpoint(open_session: Begin) -> None:
    session = open_session()
    session.value("import random; random.seed(1)")
    session.take_checkpoint()
    drawn = session.value("random.random()")
    session.roll_back(1)
    assert session.value("random.random()") == drawn


def test_an_event_loop_goes_on_after_a_rollback(open_session: Begin) -> None:
    session = open_session()
    session.value("import asyncio\nasync def later(): await asyncio.sleep(0.01); return 5\nawait later()")
    assert session.checkpoint().get("not-restored") is None  # the loop's own descriptors are made anew
    assert session.value("await later()") == "5"
    session.roll_back(1)
    assert session.value("await later()") == "5"


def test_input_and_interrupts_work_after_a_rollback(open_session: Begin) -> None:
    session = open_session()
    session.take_checkpoint()
    session.value("1")
    session.roll_back(1)
    session._eval += 1
    route = session.ask("eval", eval_id=session._eval, code="input()", **{"allow-stdin": True})
    session.ask("stdin", input="typed\n")
    assert session.done(route)["value"] == "'typed'"
    route = session.start("while True: pass")
    session.cancel(route)
    assert session.done(route)["status"] == ["done", "interrupted"]
    assert session.value("6 * 7") == "42"


def test_fork_and_subprocesses_work_after_a_rollback(open_session: Begin) -> None:
    session = open_session()
    session.value("import os, subprocess")
    session.take_checkpoint()
    session.value("1")
    session.roll_back(1)
    assert session.value("subprocess.run(['echo', 'hi'], capture_output=True).stdout") == "b'hi\\n'"
    assert (
        session.value("pid = os.fork()\nif not pid: os._exit(5)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])")
        == "5"
    )


def test_checkpoints_one_right_after_the_other_each_get_their_own_socket(open_session: Begin) -> None:
    session = open_session()
    routes = []
    for turn in range(3):
        session._eval += 1
        routes.append(session.ask("checkpoint", eval_id=session._eval, name=f"n{turn}"))
    assert [session.done(route)["status"] for route in routes] == [["done"]] * 3
    session.roll_back("n1")
    assert session.value("1") == "1"


# --- everything at once ---


def test_a_random_history_agrees_with_a_model(open_session: Begin) -> None:
    chance = random.Random(os.environ.get("REPLCTL_SEED", "14"))
    session = open_session(limits=Limits(max_checkpoints=100))
    session.value("x = 0")
    state, kept = 0, {session.take_checkpoint(): 0}
    base = 1
    for turn in range(150):
        what = chance.choice(["set", "set", "take", "drop", "go", "crash", "kill"])
        if what == "set":
            state = turn
            session.value(f"x = {turn}; y = [x] * 1000")
        elif what == "take":
            base = session.take_checkpoint()
            kept[base] = state
        elif what == "drop" and len(kept) > 1:
            number = chance.choice([each for each in kept if each != base])
            session.done(session.ask("drop-checkpoint", checkpoint=number))
            del kept[number]
        elif what == "go":
            base = chance.choice(list(kept))
            session.roll_back(base)
            state = kept[base]
        elif what in ("crash", "kill"):
            count = len(session.rollbacks)
            if what == "crash":
                session.start(chance.choice(["import os; os.abort()", "import os; os._exit(1)"]))
            else:
                session.until(lambda: not session.loop._session.is_starting)
                os.kill(session.child.pid, signal.SIGKILL)
            session.until_rollback(count)
            state = kept[base]
        if what in ("go", "crash", "kill"):
            assert session.value("x") == str(state), turn
    assert session.value("x") == str(state)
    session.settle(0.2)
    assert [each["checkpoint"] for each in session.checkpoints()] == sorted(kept)
    assert len(session.inside()) == len(kept) + 1
    assert "Z" not in {status_of(pid) for pid in session.inside()}
    listed = session.value("sorted(map(int, __import__('os').listdir('/proc/self/fd')))")
    assert listed == "[0, 1, 2, 3, 4, 5, 6, 7]"  # the last is the listing's own


def test_a_worker_leaves_no_descriptor(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    number = session.take_checkpoint()
    session.roll_back(number)
    session.value("x")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        session.roll_back(number)
        session.value("x")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_end_of_a_session_ends_its_copies(open_session: Begin) -> None:
    session = open_session()
    session.take_checkpoint()
    session.value("1")
    session.take_checkpoint()
    inside = session.inside()
    assert len(inside) == 3
    session.child.kill()
    assert all(has_exited(pid) for pid in inside)


def test_a_rollback_waits_for_the_checkpoint_that_it_needs(open_session: Begin) -> None:
    for _ in range(5):
        session = open_session("auto")
        session.value("x = 1")
        assert session.roll_back().undone == [1]
        assert session.value("'x' in globals()") == "False"

"""Checkpoints within limits, against a hostile session, without a sandbox, and taken automatically."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from checkpoint_kit import CheckpointedSession
from replwire.limits import Limits
from replwire.policy import Policy, SandboxLimits
from replworker.sandbox.machine import Machine

Begin = Callable[..., CheckpointedSession]

# --- limits ---


def test_checkpoints_with_a_name_are_limited_in_number(open_session: Begin) -> None:
    session = open_session(limits=Limits(max_checkpoints=2))
    for turn in range(2):
        session.value(f"x = {turn}")
        session.take_checkpoint(f"n{turn}")
    session.value("x = 3")
    answer = session.checkpoint()
    assert answer["status"] == ["done", "error", "checkpoint-limit-reached"]
    assert answer["limit-value"] == 2
    session.done(session.ask("drop-checkpoint", checkpoint=1))
    assert session.take_checkpoint() == 3


def test_a_name_is_given_once(open_session: Begin) -> None:
    session = open_session()
    session.take_checkpoint("one")
    assert session.checkpoint("one")["status"] == ["done", "error", "checkpoint-already-exists"]
    assert session.done(session.ask("rollback", to="two"))["status"] == ["done", "error", "checkpoint-not-found"]


def test_a_session_that_may_have_no_more_processes_is_told_and_goes_on(open_session: Begin) -> None:
    session = open_session(policy=Policy(limits=SandboxLimits(pids=8)))
    session.value(
        "import os\nfor _ in range(20):\n    try:\n        if os.fork() == 0: os.pause() if hasattr(os, 'pause') else __import__('signal').pause()\n    except OSError: break"
    )
    answer = session.checkpoint()
    assert answer["status"] == ["done", "error", "checkpoint-failed"]
    assert session.value("1") == "1"


@pytest.mark.needs_root("an ordinary user has no control group here")
def test_a_session_killed_for_memory_goes_on_from_its_checkpoint(open_session: Begin, grouped: None) -> None:
    del grouped
    session = open_session(policy=Policy(limits=SandboxLimits(memory_bytes=256 << 20)))
    session.value("x = bytearray(50 << 20)")
    session.take_checkpoint()
    session.start("import mmap\nheld = mmap.mmap(-1, 400 << 20)\nwhile True: held.write(bytes(1 << 20))")
    session.until(lambda: bool(session.rollbacks))
    assert session.rollbacks[-1].cause == "out of memory: 256 MiB (sandbox.memory-bytes)"
    assert session.value("len(x) >> 20") == "50"
    session.start("import os; os.abort()")
    session.until(lambda: len(session.rollbacks) == 2)
    assert session.rollbacks[-1].cause == "the interpreter was killed by SIGABRT (signal 6)"


def test_a_session_near_its_memory_limit_drops_automatic_ones_first(open_session: Begin) -> None:
    session = open_session("auto", policy=Policy(limits=SandboxLimits(memory_bytes=256 << 20)))
    for turn in range(4):
        session.value(f"x = bytearray({turn + 1})")
        session.settle()
    session.value("held = bytearray(b'x') * (200 << 20)")
    session.until(lambda: len(session.checkpoints()) == 1)
    assert session.done(session.ask("ls-checkpoints"))["dropped"]
    assert session.value("len(held) >> 20") == "200"


# --- a session against itself ---


def test_a_session_that_kills_all_it_can_loses_its_checkpoints_and_is_told(open_session: Begin) -> None:
    session = open_session("auto")
    session.value("x = 1")
    session.settle()
    session.value("import os, signal; os.kill(-1, signal.SIGKILL)")
    session.settle()
    assert [each["eval-id"] for each in session.checkpoints()] == [2]  # taken since
    answer = session.done(session.ask("rollback"))
    assert answer["status"] == ["done", "error", "checkpoint-not-found"]
    assert answer["undone-evals"] == [1, 2]
    assert session.value("x") == "1"


def test_a_session_that_fills_its_process_limit_can_still_go_back(open_session: Begin) -> None:
    session = open_session(policy=Policy(limits=SandboxLimits(pids=20)))
    session.value("import os, signal; x = 1")
    number = session.take_checkpoint()
    session.value("while True:\n    try:\n        if not os.fork(): signal.pause()\n    except OSError: break")
    result = session.roll_back(number)
    assert any(each.startswith("processes were killed: ") for each in result.not_restored)
    assert session.value("x") == "1"


def test_descriptors_that_a_session_takes_hold_of_reach_no_copy(open_session: Begin) -> None:
    session = open_session()
    session.value("x = 1")
    number = session.take_checkpoint()
    session.value(
        "import os\n"
        "for fd in range(3, 256):\n"
        "    if fd != 3:\n"
        "        try: os.write(fd, b'wake')\n"
        "        except OSError: pass\n"
        "x = 2"
    )
    session.settle()
    session.roll_back(number)
    assert session.value("x") == "1"


# --- who has none ---


def test_sessions_without_checkpoints_say_why(machine: Machine, open_session: Begin) -> None:
    session = open_session("off")
    assert session.assigned is not None
    assert session.assigned.checkpoints_off == "checkpoints are switched off (session.checkpoints)"
    assert session.checkpoint()["status"] == ["done", "error", "not-supported"]
    unsandboxed = CheckpointedSession(machine, sandboxed=False)
    try:
        assert unsandboxed.assigned is not None
        assert unsandboxed.assigned.checkpoints_off == "a session without a sandbox cannot be copied"
    finally:
        unsandboxed.close()


# --- automatic ones ---


def test_an_idle_session_has_a_checkpoint_of_each_answer_and_one_from_before_the_first(open_session: Begin) -> None:
    session = open_session("auto")
    for turn in range(3):
        session.value(f"x = {turn}")
        session.settle()
    assert [each["eval-id"] for each in session.checkpoints()] == [0, 1, 2, 3]
    for expected in ("1", "0"):
        session.roll_back()
        session.settle()
        assert session.value("x") == expected
        session.settle()
        session.roll_back()


def test_the_first_eval_of_a_session_can_be_undone_and_may_crash(open_session: Begin) -> None:
    session = open_session("auto")
    session.start("x = 1; import os; os.abort()")
    session.until(lambda: bool(session.rollbacks))
    assert session.value("'x' in dir()") == "False"


def test_the_oldest_automatic_ones_are_dropped_and_listed(open_session: Begin) -> None:
    session = open_session("auto", limits=Limits(max_checkpoints=3))
    session.settle()
    kept = session.take_checkpoint("kept")
    for turn in range(5):
        session.value(f"x = {turn}")
        session.settle()
    listed = session.done(session.ask("ls-checkpoints"))
    numbers = [each["checkpoint"] for each in listed["checkpoints"]]
    assert numbers == [kept, 5, 6]
    assert listed["dropped"] == [2, 3, 4]


def test_back_to_back_evals_get_at_least_one_in_a_hundred(open_session: Begin) -> None:
    session = open_session("auto", limits=Limits(max_checkpoints=100))
    session.settle()
    for turn in range(205):
        session.value(f"x = {turn}")
    session.settle()
    found = [each["eval-id"] for each in session.checkpoints()]
    assert found[-1] == 205
    assert all(later - earlier <= 102 for earlier, later in pairwise(found)), found


@pytest.mark.parametrize(
    "code",
    ["import threading, time; threading.Thread(target=time.sleep, args=(60,), name='ticker', daemon=True).start()"],
)
def test_threads_stop_automatic_ones_which_is_said(open_session: Begin, code: str) -> None:
    session = open_session("auto")
    session.value("x = 1")
    session.settle()
    session.value(code)
    session.settle()
    listed = session.done(session.ask("ls-checkpoints"))
    assert [each["eval-id"] for each in listed["checkpoints"]] == [0, 1]
    assert listed["checkpoints-off"] == "threads run, and a copy of the session would not have them: ticker"

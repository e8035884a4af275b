"""The interpreter as a process: that it can be ended at any moment of its life."""

from __future__ import annotations

import os
import select

from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.runtimes.process_start import InterpreterCommand


def _reap(child: InterpreterProcess) -> None:
    """Wait for the end, which must come by itself, and soon."""
    assert select.select([child.exit_fd], [], [], 20)[0], f"{child.pid} was not killed"
    assert child.poll_exit() == "the interpreter was killed by SIGKILL (signal 9)"
    child.close()


def test_a_child_that_was_just_forked_can_be_killed() -> None:
    for _ in range(50):
        child = InterpreterProcess(InterpreterCommand(["/bin/sleep", "1000"], {}))
        child.kill()
        _reap(child)


def test_what_a_dead_child_left_in_its_group_is_killed_too() -> None:
    child = InterpreterProcess(
        InterpreterCommand(["/bin/sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"], {"PATH": os.environ["PATH"]})
    )
    assert select.select([child.out], [], [], 20)[0]
    left = os.pidfd_open(int(child.read(child.out) or 0))
    os.kill(child.pid, 9)
    assert select.select([child.exit_fd], [], [], 20)[0]
    assert child.poll_exit() is not None
    child.kill()
    assert select.select([left], [], [], 20)[0], "what it started lives on"
    os.close(left)
    child.close()


def test_a_closed_child_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    child = InterpreterProcess(InterpreterCommand(["/bin/sleep", "1000"], {}))
    child.kill()
    _reap(child)
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_interpreter_that_ended_right_after_its_first_word_is_no_error() -> None:
    speak = r"(printf '\0\0\0\2{}' >&3; exit) & wait; echo over; exec sleep 1000"
    child = InterpreterProcess(InterpreterCommand(["/bin/bash", "-c", speak], {"PATH": os.environ["PATH"]}))
    assert select.select([child.out], [], [], 20)[0]
    assert child.receive() == [b"{}"]
    child.kill()
    _reap(child)

"""Tests that look at a tree of processes see those that live, and never nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import is_alive, wait_until
from live_processes import look_at_each, read_each


@pytest.fixture
def dead_pid() -> int:
    """The pid of a process that is gone."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(20)
    return child.pid


def test_a_process_that_has_ended_is_left_out(dead_pid: int) -> None:
    assert list(read_each([os.getpid(), dead_pid], "cmdline")) == [os.getpid()]


def test_a_process_that_ends_between_opening_and_reading_is_left_out() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with Path(f"/proc/{child.pid}/stat").open("rb") as file:
        child.communicate(timeout=20)
        with pytest.raises(ProcessLookupError):  # so there is this error to be expected
            file.read()
        assert look_at_each([os.getpid(), child.pid], lambda pid: pid != child.pid or file.read(), 1) == {
            os.getpid(): True
        }


def test_nothing_seen_is_a_failure(dead_pid: int) -> None:
    with pytest.raises(AssertionError, match="only 0 processes were seen, of at least 1"):
        read_each([dead_pid], "cmdline")
    with pytest.raises(AssertionError, match="only 1 processes were seen, of at least 2"):
        read_each([os.getpid(), dead_pid], "cmdline", at_least=2)


def test_a_zombie_does_not_count_as_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: not is_alive(child.pid), "it has ended")
    with pytest.raises(AssertionError, match="only 0 processes had a cmdline, of at least 1"):
        read_each([child.pid], "cmdline")
    child.wait(20)


def test_a_refusal_by_a_process_that_lives_is_raised() -> None:
    def refuse(pid: int) -> None:
        raise PermissionError(pid)

    with pytest.raises(PermissionError):
        look_at_each([os.getpid()], refuse)

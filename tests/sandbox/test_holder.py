"""The first process of a sandbox keeps it alive without its interpreter, and gives a session nothing to take hold of."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from kit import wait_until
from replwire.policy import Policy
from replworker.runtimes.commands import build_command
from replworker.runtimes.exit_status import read_exit_status
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.machine import Machine
from replworker.sandbox.prepare import prepare_plan
from sandbox_kit import SandboxedPython, descendants, has_exited

Start = Callable[..., SandboxedPython]


def holder_of(session: SandboxedPython) -> int:
    """Pid of the sandbox's first process, once it has become what it stays."""
    pid = int(Path(f"/proc/{session.child.outer_pid}/task/{session.child.outer_pid}/children").read_text())
    session.until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    return pid


def test_a_sandbox_outlasts_its_interpreter_until_its_worker_ends_it(live: Start) -> None:
    session = live()
    holder = holder_of(session)
    session.start("import os; os._exit(3)")
    session.until(lambda: has_exited(session.child.pid))
    assert session.child.poll_exit() == "the interpreter exited with code 3"
    assert Path(f"/proc/{holder}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    session.child.kill()
    assert has_exited(holder)


def test_the_holder_survives_what_a_session_can_send_it(live: Start) -> None:
    session = live()
    holder = holder_of(session)
    result = session.value(
        "import os, signal\n"
        "def send(pid, number):\n"
        "    try: os.kill(pid, number)\n"
        "    except OSError: pass\n"
        "for number in range(1, 32):\n"
        "    if number not in (signal.SIGSTOP, signal.SIGTSTP): send(1, number)\n"
        "send(-1, signal.SIGKILL)\n"
        "'alive'"
    )
    assert result == "'alive'"
    assert not has_ended(holder)
    assert session.value("6 * 7") == "42"


def has_ended(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}/stat")


def test_the_holder_has_no_descriptor_and_little_memory(live: Start) -> None:
    holder = holder_of(live())
    assert os.listdir(f"/proc/{holder}/fd") == []
    rollup = Path(f"/proc/{holder}/smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    assert pss < 1024  # kB; an interpreter in its place takes ten times as much


def test_orphans_of_a_session_leave_no_zombie(live: Start) -> None:
    session = live()
    holder = holder_of(session)
    session.value(
        "import os, time\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    session.until(lambda: descendants(holder) == [session.child.pid])


def test_an_interpreter_that_fails_at_its_start_ends_the_sandbox_and_is_told(machine: Machine) -> None:
    env = {"PATH": "/usr/bin:/bin", "PYTHONHOME": "/missing"}
    plan = prepare_plan(Policy(), machine, "python", sys.executable, env, slot=os.getpid(), has_holder=True)
    wrapper = BubblewrapSandbox(plan)
    child = InterpreterProcess(build_command("python", sys.executable, plan.env, wrapper))
    try:
        how = wait_until(child.poll_exit, "it has ended")
    finally:
        wrapper.close()
        child.close()
    assert how.startswith("the interpreter exited with code 1 at its start: ")
    assert "encodings" in how


def test_a_kernel_that_does_not_tell_how_a_process_ended_is_asked_in_vain() -> None:
    reader, writer = os.pipe()
    try:
        assert read_exit_status(reader) is None
    finally:
        os.close(reader)
        os.close(writer)

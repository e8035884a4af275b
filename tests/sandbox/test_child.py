"""A sandboxed interpreter is driven like any other: evals, interrupts, input, late output, figures, and its end."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))

from kit import wait_until
from live_processes import look_at_each
from replwire.policy import Policy, SandboxLimits
from replworker.runtimes.commands import build_command
from replworker.runtimes.environments import ResolvedInterpreter
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.sandbox import cgroup, identity
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.machine import Machine
from replworker.sandbox.mount_helper import MountHelper
from replworker.sandbox.prepare import prepare_plan
from replworker.sandbox.report import SandboxReport
from replworker.sandbox.workspace import EVERYTHING, DirectoryRefused, check_directory
from replworker.session_sandbox import SandboxRequest, prepare_sandbox
from sandbox_kit import SandboxedPython, descendants, has_exited

PR_SET_CHILD_SUBREAPER = 36
Start = Callable[..., SandboxedPython]


def test_it_evaluates_and_keeps_state(live: Start) -> None:
    session = live()
    session.value("x = 6")
    assert session.value("x * 7") == "42"


def test_the_interpreters_own_pid_is_known_outside(live: Start) -> None:
    session = live()
    assert session.value("__import__('os').getpid()") == "2"
    assert session.child.pid in descendants(os.getpid())
    assert b"harness.py" in Path(f"/proc/{session.child.pid}/cmdline").read_bytes()


def test_no_credential_of_the_hosts_root_is_inside(live: Start) -> None:
    session = live()
    owners = look_at_each(descendants(session.child.outer_pid), lambda pid: os.stat(f"/proc/{pid}").st_uid)
    assert 0 not in owners.values()
    assert session.value("__import__('os').getuid()") == "1000"


def test_an_interrupt_reaches_the_interpreter_and_keeps_state(live: Start) -> None:
    session = live()
    session.value("x = 1")
    session.start("print('on my way', flush=True)\nwhile True: pass")
    session.until(lambda: "on my way" in session.out)
    session.child.interrupt()
    assert session.frame()["outcome"] == "interrupted"
    assert session.value("x") == "1"


def test_it_reads_input(live: Start) -> None:
    session = live()
    session.start("input('name? ')", stdin=True)
    assert session.frame()["t"] == "need-input"
    session.child.write_stdin(b"Ada\n")
    assert session.frame()["value"] == "'Ada'"


def test_output_of_no_eval_comes_on_its_own_pipe(live: Start) -> None:
    session = live()
    session.value("import threading; go = threading.Event()")
    session.value("t = threading.Thread(target=lambda: (go.wait(), print('afterwards')))\nt.start()")
    session.value("threading.Timer(0.05, go.set).start()")
    session.until(lambda: "afterwards" in session.late)


def test_memory_and_time_are_the_interpreters(live: Start) -> None:
    session = live()
    before = session.child.memory_bytes()
    assert before is not None
    session.value("block = b'x' * 50_000_000; len(block)")
    after = session.child.memory_bytes()
    assert after is not None
    assert after - before > 40_000_000
    session.value("sum(range(10_000_000))")
    assert (session.child.cpu_seconds() or 0) > 0.01


DAEMON = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    os._exit(0)
os.wait()[1]
"""


def test_a_kill_leaves_nothing_not_even_a_daemon(live: Start) -> None:
    session = live()
    assert session.value(DAEMON) == "0"
    everything = [session.child.outer_pid, *descendants(session.child.outer_pid)]
    assert len(everything) == 4  # bubblewrap, the holder, the interpreter, the daemon
    session.child.kill()
    assert "killed by SIGKILL" in session.death()
    assert all(has_exited(pid) for pid in everything)


def test_everything_dies_when_the_interpreter_ends(live: Start) -> None:
    session = live()
    session.value(DAEMON)
    everything = descendants(session.child.outer_pid)
    session.start("import os; os._exit(7)")
    assert session.death() == "the interpreter exited with code 7"
    assert all(has_exited(pid) for pid in everything)


def test_a_worker_that_is_killed_takes_its_sandbox_along(machine: Machine, report: SandboxReport) -> None:
    del report
    result, writer = os.pipe()
    worker = os.fork()
    if worker == 0:
        plan = prepare_plan(Policy(), machine, "python", sys.executable, {"PATH": "/usr/bin"}, has_holder=True)
        child = InterpreterProcess(build_command("python", sys.executable, plan.env, BubblewrapSandbox(plan)))
        while child.pid == child.outer_pid:
            child.receive()
        os.write(writer, b"up")
        signal.pause()
    os.close(writer)
    assert os.read(result, 2) == b"up"
    everything = descendants(worker)
    assert len(everything) >= 4  # the usher as well, perhaps with what it prepares by
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    os.close(result)
    assert all(has_exited(pid) for pid in everything)
    cgroup.remove_orphans(machine.cgroups)  # other sessions of this machine may have groups of their own
    directories = set(machine.cgroups.directories.values())
    assert [path for directory in directories for path in Path(directory).glob(f"replctl-{worker}-*")] == []


def test_an_usher_that_is_dismissed_while_it_prepares_leaves_nothing() -> None:
    helper = os.fork()
    if helper == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            for turn in range(40):
                helper = MountHelper(os.getpid(), identity.uid_for(0))
                select.select([], [], [], turn / 4000)  # up to 10 ms: somewhere in its preparations
                helper.stop()
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(0)
        finally:
            os._exit(1)
    try:
        wait_until(lambda: os.waitid(os.P_PID, helper, os.WEXITED | os.WNOHANG | os.WNOWAIT), "it has no child left")
    finally:
        os.kill(helper, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == 0


def test_a_crash_is_named(live: Start) -> None:
    session = live()
    session.start("import ctypes; ctypes.string_at(0)")
    assert session.death() == "the interpreter was killed by SIGSEGV (signal 11)"


# --- its directory ---


def test_a_warm_interpreter_is_given_its_directory(live: Start, workspace: Path) -> None:
    session = live(assigned=False)
    session.assign(workspace)
    assert session.value("import os; os.getcwd()") == repr(str(workspace))
    assert session.value("open('data.txt').read()") == "'forty-two'"
    session.value("open('made', 'w').write('inside')")
    made = workspace / "made"
    assert made.read_text() == "inside"
    assert (made.stat().st_uid, made.stat().st_gid) == (os.getuid(), os.getgid())


def test_a_directory_is_mounted_without_programs_that_change_users_and_without_devices(
    live: Start, workspace: Path
) -> None:
    session = live(assigned=False)
    session.assign(workspace)
    session.value("line = [l for l in open('/proc/self/mountinfo') if '/project ' in l][0]")
    assert session.value("{'nosuid', 'nodev', 'rw'} <= set(line.split()[5].split(','))") == "True"


def test_nothing_beside_the_directory_comes_along(live: Start, workspace: Path) -> None:
    (workspace.parent / "beside").write_text("not for you")
    session = live(assigned=False)
    session.assign(workspace)
    assert session.value(f"__import__('os').listdir({str(workspace.parent)!r})") == "['project']"


def test_a_slot_is_used_once(live: Start, workspace: Path) -> None:
    session = live(assigned=False)
    session.assign(workspace)
    assert session.wrapper.attach(session.policy, str(workspace)).error is not None


def test_a_read_only_session_reads_its_directory(live: Start, workspace: Path) -> None:
    session = live(Policy(profile="read-only"), assigned=False)
    session.assign(workspace)
    assert session.value("open('data.txt').read()") == "'forty-two'"
    assert session.eval("open('data.txt', 'a')")["ex"]["type"] == "OSError"


def test_a_directory_that_was_swapped_for_a_symlink_is_refused(live: Start, workspace: Path, tmp_path: Path) -> None:
    session = live(assigned=False)
    workspace.rename(tmp_path / "real")
    workspace.symlink_to(tmp_path / "real")
    error = session.wrapper.attach(session.policy, str(workspace)).error
    assert error is not None
    assert "Too many levels of symbolic links" in error


def test_a_directory_of_an_environment_that_was_swapped_before_it_is_mounted_stops_the_start(machine: Machine) -> None:
    """bubblewrap follows symlinks, so the step inside looks at what it mounted before the environment is run."""
    with tempfile.TemporaryDirectory(prefix="rpl-env-", dir="/tmp") as name:
        home = Path(name)
        home.chmod(0o755)
        (packages := home / "env/lib/python3.11/site-packages").mkdir(parents=True)
        for directory in ("env/bin", "src", "secret"):
            (home / directory).mkdir()
        (home / "env/bin/python").symlink_to("/usr/bin/python3")
        (home / "env/pyvenv.cfg").write_text("home = /usr/bin\n")
        (packages / "x.pth").write_text(f"{home}/src\n")
        python = str(home / "env/bin/python")
        plan = prepare_plan(Policy(), machine, "python", python, {"PATH": "/usr/bin"}, slot=os.getpid(), trusted=False)
        assert f"{home}/src" in plan.open_way
        (home / "src").rmdir()
        (home / "src").symlink_to(home / "secret")
        wrapper = BubblewrapSandbox(plan)
        child = InterpreterProcess(build_command("python", python, plan.env, wrapper))
        try:
            how = wait_until(child.poll_exit, "it has ended")
        finally:
            wrapper.close()
            child.close()
    assert how == f"the interpreter exited with code 1 at its start: sandbox: {home}/src was replaced meanwhile"


def test_a_directory_can_be_mounted_at_the_start_where_it_cannot_be_later(live: Start, workspace: Path) -> None:
    session = live(assigned=False, directory=str(workspace))
    assert session.plan.late is False
    session.assign(workspace)
    session.value("open('made', 'w').write('inside')")
    assert (workspace / "made").stat().st_uid == os.getuid()


def test_extra_directories_are_there_from_the_start(live: Start, tmp_path: Path) -> None:
    for name in ("reading", "writing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    session = live(Policy(readable_paths=[str(tmp_path / "reading")], writable_paths=[str(tmp_path / "writing")]))
    assert session.value(f"open('{tmp_path}/reading/file').read()") == "'reading'"
    assert session.eval(f"open('{tmp_path}/reading/file', 'a')")["ex"]["type"] == "OSError"
    session.value(f"open('{tmp_path}/writing/file', 'w').write('changed')")
    assert (tmp_path / "writing/file").read_text() == "changed"
    assert (tmp_path / "writing/file").stat().st_uid == os.getuid()


# --- limits ---


def test_memory_runs_out_with_an_exception_and_the_session_lives(live: Start) -> None:
    session = live(Policy(limits=SandboxLimits(memory_bytes=128 << 20)))
    session.value("x = 1")
    assert session.eval("bytearray(400 << 20)")["ex"]["type"] == "MemoryError"
    assert session.value("x") == "1"


SHARED = "import mmap\nm = mmap.mmap(-1, 400 << 20)\nwhile True: m.write(bytes(1 << 20))"


def test_the_verdict_names_the_memory_limit(live: Start, grouped: None) -> None:
    del grouped
    session = live(Policy(limits=SandboxLimits(memory_bytes=128 << 20)))
    session.start(SHARED)
    assert session.death() == "out of memory: 128 MiB (sandbox.memory-bytes)"


def test_a_processor_share_is_set(live: Start, grouped: None) -> None:
    del grouped
    session = live(Policy(limits=SandboxLimits(cpu_percent=50)))
    directory = session.wrapper.group.directories["cpu"]
    settings = [
        path.read_text().split() for path in directory.glob("cpu.*") if path.name in ("cpu.max", "cpu.cfs_quota_us")
    ]
    assert [words[0] for words in settings] == ["50000"]


def test_processes_of_a_session_are_counted_apart_from_others_of_the_same_user(live: Start) -> None:
    policy = Policy(limits=SandboxLimits(pids=12))
    first, second = live(policy), live(policy)
    for session in (first, second):
        session.value("import subprocess; ran = [subprocess.Popen(['sleep', '99']) for _ in range(5)]")
    assert first.eval("more = [subprocess.Popen(['sleep', '99']) for _ in range(9)]")["ex"]["type"] == "BlockingIOError"
    assert second.value("subprocess.run(['true']).returncode") == "0"


# --- what must still work ---

ORDINARY = """
import asyncio, multiprocessing, socket, sqlite3, ssl, subprocess, tempfile, threading, pathlib
with socket.create_server(('127.0.0.1', 0)) as server:
    socket.create_connection(server.getsockname()).close()
with tempfile.NamedTemporaryFile() as file:
    sqlite3.connect(file.name).execute('create table t (x)')
assert subprocess.run(['sh', '-c', 'echo $HOME; id -un'], capture_output=True, text=True).stdout == '/tmp/home\\nrepl\\n'
with multiprocessing.get_context('fork').Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
queue = multiprocessing.get_context('fork').Queue(); queue.put(1); assert queue.get() == 1
async def main():
    process = await asyncio.create_subprocess_exec('true')
    return await process.wait()
assert asyncio.run(main()) == 0
assert socket.gethostbyname('localhost') == '127.0.0.1'
(pathlib.Path.home() / '.cache').mkdir()
"""


def test_ordinary_programs_run(live: Start) -> None:
    answer = live().eval(ORDINARY)
    assert answer["outcome"] == "ok", answer["traceback"]


def test_an_older_python_is_sandboxed_as_well(live: Start) -> None:
    found = sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python3.8"))
    session = live(python=str(found[0]) if found else sys.executable)
    assert session.value("6 * 7") == "42"


def test_a_refused_directory_says_why(tmp_path: Path) -> None:
    with pytest.raises(DirectoryRefused, match="system directory"):
        check_directory(Policy(), "/usr/lib", "/home/ada")
    with pytest.raises(DirectoryRefused, match="contains a home directory"):
        check_directory(Policy(), str(tmp_path), str(tmp_path))


def test_a_refused_directory_is_left_to_the_assignment_where_directories_are_mounted_at_the_start(
    machine: Machine, report: SandboxReport, tmp_path: Path
) -> None:
    del report
    result = SandboxRequest(Policy(workspaces=["/srv"]), replace(machine, late_mounts=machine.admin), 0, "/usr/share")
    sandbox = prepare_sandbox(
        "python",
        result,
        ResolvedInterpreter(sys.executable, {"PATH": "/usr/bin:/bin"}),
        records=str(tmp_path / "held"),
        packages=None,
    )
    try:
        directory, why, _ = sandbox.enter(result.directory, needed=False, granted=lambda: EVERYTHING)
        assert (directory, "not in one of the broker's workspaces" in (why or "")) == (None, True)
        with pytest.raises(DirectoryRefused, match="workspaces"):
            sandbox.enter(result.directory, needed=True, granted=lambda: EVERYTHING)
    finally:
        sandbox.wrapper.close()

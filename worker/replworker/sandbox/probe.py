"""Probe, then promise: the real command line with a canary in it that tries to get out.

That a program is installed, or that a call exists, says nothing: what counts is what was observed from inside. Each
way out leads to something that was laid out for it and that is there when one comes without a sandbox: a file, three
listening sockets, our own pid.
"""

from __future__ import annotations

import json
import os
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from replwire.policy import Policy
from replworker.runtimes.interpreter_process import InterpreterCommand, InterpreterProcess
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.machine import Machine
from replworker.sandbox.plan import FIRST_FD, SandboxPlan, SandboxUnavailable
from replworker.sandbox.prepare import prepare_plan
from replworker.sandbox.report import (
    REQUIRED,
    HostObservation,
    HostSettings,
    SandboxReport,
    evaluate,
    explain_failure,
    failed_report,
)
from replworker.sandbox.workspace import DirectoryRefused

SELFTEST = str(Path(__file__).with_name("selftest.py"))
TIMEOUT_S = 10.0
_MOST_BYTES = 64 * 1024
_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts")


def probe(
    policy: Policy,
    machine: Machine,
    python: str,
    env: dict[str, str],
    *,
    required: tuple[str, ...] = REQUIRED,
    scratch: str | None = None,
) -> SandboxReport:
    """Which layers hold for sessions of this policy. `python` (3.8 or later) runs the canary. Takes about 0.2 s.

    `scratch` is a folder for what is laid out; give one on the file system where workspaces lie. Never raises for
    what a machine may lack: the report says it.
    """
    assert policy.profile != "off", "nothing to probe"
    try:
        with _bait(scratch) as order:
            plan = prepare_plan(policy, machine, "python", python, env, also=(SELFTEST,))
            report, late_error = _run_selftest(plan, python, order, None, required)
            if late_error is None or machine.uid == 0:
                return report
            cold = prepare_plan(policy, machine, "python", python, env, also=(SELFTEST,), folder=order["workspace"])
            return _run_selftest(cold, python, order, late_error, required)[0]
    except SandboxUnavailable as error:
        return failed_report(error.cause, error.fix, required)
    except (DirectoryRefused, OSError) as error:
        return failed_report(str(error), "", required)


def _run_selftest(
    plan: SandboxPlan, python: str, order: dict[str, Any], late_error: str | None, required: tuple[str, ...]
) -> tuple[SandboxReport, str | None]:
    """The report, and why the folder could not be mounted late. `late_error`: it is mounted from the start."""
    fd = os.open(order["workspace"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        confined = BubblewrapSandbox(plan, extra=(fd,))
        told = {**order, "fd": FIRST_FD + len(confined.fds) - 1}
        child = InterpreterProcess(InterpreterCommand([python, "-I", SELFTEST, json.dumps(told)], plan.env, confined))
    finally:
        os.close(fd)
    try:
        out, err = _read_output(child, until="here\n")
        if out != "here\n":
            _wait_for_exit(child)
            return failed_report(*explain_failure(err, detect_host_settings()), required), None
        if late_error is None:
            late_error = confined.attach(plan.policy, order["workspace"])
        outside = _observe_from_host(plan, child, confined, late_error)
        child.write_stdin(b"\n")
        out, err = _read_output(child, until="\n")
        try:
            return evaluate(plan.policy, json.loads(out), outside, required), late_error
        except (ValueError, KeyError, TypeError):
            said = (err or out)[-500:].strip()
            return failed_report(f"the canary did not end: {_wait_for_exit(child)}: {said}", "", required), None
    finally:
        _reap(child, confined)


def _observe_from_host(
    plan: SandboxPlan, child: InterpreterProcess, confined: BubblewrapSandbox, late_error: str | None
) -> HostObservation:
    inside = _innermost_pid(child.pid)
    return HostObservation(
        uid=os.stat(f"/proc/{inside}").st_uid,
        namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
        grouped=frozenset(confined.group.controllers_of(inside)),
        late_error=late_error,
        group_problem=plan.machine.cgroups.problem,
        landlock_abi=plan.machine.landlock_abi,
        variables=frozenset(plan.env),
    )


def _innermost_pid(pid: int) -> int:
    """bubblewrap, its first process inside, the canary: each the only child of the one before. Or what there is."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _read_output(child: InterpreterProcess, until: str) -> tuple[str, str]:
    """Its stdout up to a text, or to its end, and what it said on stderr meanwhile. Bounded in time and size."""
    end = time.monotonic() + TIMEOUT_S
    out = err = b""
    open_fds = {child.out, child.err}
    while open_fds and len(out) < _MOST_BYTES and not out.endswith(until.encode()):
        ready = select.select(list(open_fds), [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            break
        for fd in ready:
            data = child.read(fd)
            if not data:
                open_fds.discard(fd)
            elif fd == child.out:
                out += data
            else:
                err = (err + data)[-_MOST_BYTES:]
    return out.decode(errors="replace"), err.decode(errors="replace")


def _wait_for_exit(child: InterpreterProcess) -> str:
    select.select([child.pidfd], [], [], TIMEOUT_S)
    return child.poll_exit() or "it did not end"


def _reap(child: InterpreterProcess, confined: BubblewrapSandbox) -> None:
    child.kill()
    if select.select([child.pidfd], [], [], TIMEOUT_S)[0]:
        try:
            child.poll_exit()
        except ChildProcessError:  # buried already
            pass
    confined.close()
    child.close()


@contextmanager
def _bait(scratch: str | None) -> Iterator[dict[str, Any]]:
    """What the canary may not reach, and what it is told about it."""
    with ExitStack() as stack:
        folder = Path(
            os.path.realpath(stack.enter_context(tempfile.TemporaryDirectory(prefix="replctl-", dir=scratch)))
        )
        folder.chmod(0o755)  # a closed folder would hold what a missing layer does not
        (folder / "workspace").mkdir()
        (folder / "secret").write_text("for nobody")
        (folder / "secret").chmod(0o666)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"replctl-canary-{os.getpid()}-{time.monotonic_ns()}"
        for address in ("\0" + abstract, str(folder / "socket")):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(address)
            listener.listen()
        (folder / "socket").chmod(0o666)
        yield {
            "secret": str(folder / "secret"),
            "workspace": str(folder / "workspace"),
            "socket": str(folder / "socket"),
            "abstract": abstract,
            "port": tcp.getsockname()[1],
            "pid": os.getpid(),
        }


def detect_host_settings() -> HostSettings:
    """What this machine says about user namespaces."""
    container = None
    if os.path.exists("/.dockerenv"):
        container = "docker"
    elif os.path.exists("/run/.containerenv"):
        container = "podman"
    return HostSettings(
        _number("/proc/sys/user/max_user_namespaces"),
        _number("/proc/sys/kernel/unprivileged_userns_clone"),
        _number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        container,
    )


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None

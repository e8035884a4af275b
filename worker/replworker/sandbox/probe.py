"""Sandbox probe: runs the real command line with a self-test program that attempts to escape.

Only results observed from inside count, not installed programs or available calls. Each attempt has bait that is
reachable without a sandbox: a file, three listening sockets, the broker's pid.
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
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.runtimes.process_start import InterpreterCommand
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
    """Return which layers hold for sessions with this policy. Takes about 0.2 s.

    Never raises for missing features of the machine; the report lists them.

    Args:
        policy: the policy to test
        machine: facts about this machine
        python: Python 3.8 or later that runs the self-test
        env: its environment
        required: layers without which sessions are refused
        scratch: directory for the bait, on the file system of the workspaces
    """
    assert policy.profile != "off", "nothing to probe"
    try:
        with _bait(scratch) as targets:
            plan = prepare_plan(policy, machine, "python", python, env, also=(SELFTEST,))
            report, late_error = _run_selftest(plan, python, targets, None, required)
            if late_error is None or machine.uid == 0:
                return report
            cold = prepare_plan(
                policy, machine, "python", python, env, also=(SELFTEST,), directory=targets["workspace"]
            )
            return _run_selftest(cold, python, targets, late_error, required)[0]
    except SandboxUnavailable as error:
        return failed_report(error.cause, error.fix, required)
    except (DirectoryRefused, OSError) as error:
        return failed_report(str(error), "", required)


def _run_selftest(
    plan: SandboxPlan, python: str, targets: dict[str, Any], late_error: str | None, required: tuple[str, ...]
) -> tuple[SandboxReport, str | None]:
    """Run the self-test; return the report, and why the workspace could not be mounted late.

    With `late_error` given, the workspace is mounted from the start.
    """
    fd = os.open(targets["workspace"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        wrapper = BubblewrapSandbox(plan, extra=(fd,))
        arguments = {**targets, "fd": FIRST_FD + len(wrapper.fds) - 1}
        process = InterpreterProcess(
            InterpreterCommand([python, "-I", SELFTEST, json.dumps(arguments)], plan.env, wrapper)
        )
    finally:
        os.close(fd)
    try:
        out, err = _read_output(process, until="here\n")
        if out != "here\n":
            _wait_for_exit(process)
            return failed_report(*explain_failure(err, detect_host_settings()), required), None
        if late_error is None:
            late_error = wrapper.attach(plan.policy, targets["workspace"]).error
        outside = _observe_from_host(plan, process, wrapper, late_error)
        process.write_stdin(b"\n")
        out, err = _read_output(process, until="\n")
        try:
            return evaluate(plan.policy, json.loads(out), outside, required), late_error
        except (ValueError, KeyError, TypeError):
            text = (err or out)[-500:].strip()
            return failed_report(f"the self-test did not finish: {_wait_for_exit(process)}: {text}", "", required), None
    finally:
        _reap(process, wrapper)


def _observe_from_host(
    plan: SandboxPlan, process: InterpreterProcess, wrapper: BubblewrapSandbox, late_error: str | None
) -> HostObservation:
    inside = _innermost_pid(process.pid)
    return HostObservation(
        uid=os.stat(f"/proc/{inside}").st_uid,
        namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
        grouped=frozenset(wrapper.group.controllers_of(inside)),
        late_error=late_error,
        group_problem=plan.machine.cgroups.problem,
        landlock_abi=plan.machine.landlock_abi,
        variables=frozenset(plan.env),
    )


def _innermost_pid(pid: int) -> int:
    """Return the self-test's pid: bubblewrap, its init and the program are each an only child."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _read_output(process: InterpreterProcess, until: str) -> tuple[str, str]:
    """Read stdout up to a text or its end, and stderr meanwhile, bounded in time and size."""
    end = time.monotonic() + TIMEOUT_S
    out = err = b""
    open_fds = {process.out, process.err}
    while open_fds and len(out) < _MOST_BYTES and not out.endswith(until.encode()):
        ready = select.select(list(open_fds), [], [], max(0.0, end - time.monotonic()))[0]
        if not ready:
            break
        for fd in ready:
            data = process.read(fd)
            if not data:
                open_fds.discard(fd)
            elif fd == process.out:
                out += data
            else:
                err = (err + data)[-_MOST_BYTES:]
    return out.decode(errors="replace"), err.decode(errors="replace")


def _wait_for_exit(process: InterpreterProcess) -> str:
    select.select([process.exit_fd], [], [], TIMEOUT_S)
    return process.poll_exit() or "it did not exit"


def _reap(process: InterpreterProcess, wrapper: BubblewrapSandbox) -> None:
    process.kill()
    if select.select([process.exit_fd], [], [], TIMEOUT_S)[0]:
        try:
            process.poll_exit()
        except ChildProcessError:  # reaped already
            pass
    wrapper.close()
    process.close()


@contextmanager
def _bait(scratch: str | None) -> Iterator[dict[str, Any]]:
    """Lay out the bait and yield its description for the self-test."""
    with ExitStack() as stack:
        directory = Path(
            os.path.realpath(stack.enter_context(tempfile.TemporaryDirectory(prefix="replctl-", dir=scratch)))
        )
        directory.chmod(0o755)  # a closed directory would mask a missing layer
        (directory / "workspace").mkdir()
        (directory / "secret").write_text("for nobody")
        (directory / "secret").chmod(0o666)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"replctl-canary-{os.getpid()}-{time.monotonic_ns()}"
        for address in ("\0" + abstract, str(directory / "socket")):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(address)
            listener.listen()
        (directory / "socket").chmod(0o666)
        yield {
            "secret": str(directory / "secret"),
            "workspace": str(directory / "workspace"),
            "socket": str(directory / "socket"),
            "abstract": abstract,
            "port": tcp.getsockname()[1],
            "pid": os.getpid(),
        }


def detect_host_settings() -> HostSettings:
    """Read the kernel settings for user namespaces."""
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

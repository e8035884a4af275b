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
from replworker.confine.confined import Confined
from replworker.confine.machine import Machine
from replworker.confine.plan import FIRST_FD, Plan, Unavailable
from replworker.confine.prepare import prepare
from replworker.confine.report import REQUIRED, Host, Outside, Report, broken, explain, judge
from replworker.confine.workspace import Refused
from replworker.runtimes.child import Child, Command

CANARY = str(Path(__file__).with_name("canary.py"))
PATIENCE_S = 10.0
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
) -> Report:
    """Which layers hold for sessions of this policy. `python` (3.8 or later) runs the canary. Takes about 0.2 s.

    `scratch` is a folder for what is laid out; give one on the file system where workspaces lie. Never raises for
    what a machine may lack: the report says it.
    """
    assert policy.profile != "off", "nothing to probe"
    try:
        with _laid_out(scratch) as order:
            plan = prepare(policy, machine, "python", python, env, also=(CANARY,))
            report, late_error = _run(plan, python, order, None, required)
            if late_error is None or machine.uid == 0:
                return report
            cold = prepare(policy, machine, "python", python, env, also=(CANARY,), folder=order["workspace"])
            return _run(cold, python, order, late_error, required)[0]
    except Unavailable as error:
        return broken(error.cause, error.mend, required)
    except (Refused, OSError) as error:
        return broken(str(error), "", required)


def _run(
    plan: Plan, python: str, order: dict[str, Any], late_error: str | None, required: tuple[str, ...]
) -> tuple[Report, str | None]:
    """The report, and why the folder could not be mounted late. `late_error`: it is mounted from the start."""
    fd = os.open(order["workspace"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        confined = Confined(plan, extra=(fd,))
        told = {**order, "fd": FIRST_FD + len(confined.fds) - 1}
        child = Child(Command([python, "-I", CANARY, json.dumps(told)], plan.env, confined))
    finally:
        os.close(fd)
    try:
        out, err = _collect(child, until="here\n")
        if out != "here\n":
            _end(child)
            return broken(*explain(err, host()), required), None
        if late_error is None:
            late_error = confined.attach(plan.policy, order["workspace"])
        outside = _outside(plan, child, confined, late_error)
        child.feed(b"\n")
        out, err = _collect(child, until="\n")
        try:
            return judge(plan.policy, json.loads(out), outside, required), late_error
        except (ValueError, KeyError, TypeError):
            said = (err or out)[-500:].strip()
            return broken(f"the canary did not end: {_end(child)}: {said}", "", required), None
    finally:
        _bury(child, confined)


def _outside(plan: Plan, child: Child, confined: Confined, late_error: str | None) -> Outside:
    inside = _innermost(child.pid)
    return Outside(
        uid=os.stat(f"/proc/{inside}").st_uid,
        namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
        grouped=frozenset(confined.group.holds(inside)),
        late_error=late_error,
        group_problem=plan.machine.cgroups.problem,
        landlock_abi=plan.machine.landlock_abi,
        variables=frozenset(plan.env),
    )


def _innermost(pid: int) -> int:
    """bubblewrap, its first process inside, the canary: each the only child of the one before. Or what there is."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _collect(child: Child, until: str) -> tuple[str, str]:
    """Its stdout up to a text, or to its end, and what it said on stderr meanwhile. Bounded in time and size."""
    end = time.monotonic() + PATIENCE_S
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


def _end(child: Child) -> str:
    select.select([child.pidfd], [], [], PATIENCE_S)
    return child.died() or "it did not end"


def _bury(child: Child, confined: Confined) -> None:
    child.kill()
    if select.select([child.pidfd], [], [], PATIENCE_S)[0]:
        try:
            child.died()
        except ChildProcessError:  # buried already
            pass
    confined.close()
    child.close()


@contextmanager
def _laid_out(scratch: str | None) -> Iterator[dict[str, Any]]:
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


def host() -> Host:
    """What this machine says about user namespaces."""
    container = None
    if os.path.exists("/.dockerenv"):
        container = "docker"
    elif os.path.exists("/run/.containerenv"):
        container = "podman"
    return Host(
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

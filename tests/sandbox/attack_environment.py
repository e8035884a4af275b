"""Runs all attacks as one kind of user, bare or sandboxed, against sentinels of its own, and says how each went.

`python attack_environment.py root|user bare|sandboxed|without-LAYER`; JSON on stdout. Started as root it first leaves for namespaces of its own
(mounts, host name), so that not even an attack that gets out changes anything for anybody else.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from attack_programs import program
from attacks import ATTACKS, Attack
from replwire.policy import Policy, SandboxLimits
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.runtimes.process_start import InterpreterCommand
from replworker.sandbox import cgroup, identity, machine, mounts, private_mounts, runtime_paths, seccomp
from replworker.sandbox import plan as plans
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.placeholders import create_placeholders, remove_placeholders
from replworker.sandbox.plan import FIRST_FD, SandboxPlan
from replworker.sandbox.prepare import prepare_plan

PLAIN_UID = 4242
TIMEOUT_S = 20.0
MIB = 1 << 20
CLONE_NEWUTS = 0x0400_0000
LIMITS = SandboxLimits(memory_bytes=256 * MIB, pids=48, file_bytes=2 * MIB, open_files=256, tmp_bytes=8 * MIB)
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "python": [sys.executable, "-I", "-c"],
    "node": [shutil.which("node") or "/usr/bin/node", "-e"],
    "bash": ["/bin/bash", "-c"],
}


def become_ordinary_user(home: str = "/tmp") -> None:
    """An ordinary user, who can reach this python and this checkout wherever they lie."""
    needs = runtime_paths.find_runtime_paths(sys.executable, more=(str(ROOT),))
    private_mounts.expose_paths(needs.paths, (), PLAIN_UID)
    identity.drop_to_user(PLAIN_UID)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again, as after an exec: /proc/self is ours
    os.environ["HOME"] = home


@contextmanager
def sentinels(uid: int | None = None) -> Iterator[tuple[Path, dict[str, str]]]:
    """Create targets for attacks, all our own; yields their places. `uid` will own them."""
    with ExitStack() as stack:
        directory = Path(
            os.path.realpath(stack.enter_context(tempfile.TemporaryDirectory(prefix="arena-", dir="/tmp")))
        )
        for name in ("workspace", "beside", "home", "mask"):
            (directory / name).mkdir()
        (directory / "mask/masked").write_text("")
        (directory / "secret").write_text("for nobody")
        (directory / "log").write_text("a line")
        (directory / "home/diary").write_text("")
        token, name = os.urandom(12).hex(), f"arena-{os.getpid()}-{time.monotonic_ns()}"
        shm = Path(f"/dev/shm/{name}")
        shm.write_text("a sibling's")
        shm.chmod(0o666)
        stack.callback(shm.unlink)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for address in ("\0" + name, str(directory / "socket")):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen(64)
        for path in (directory, *directory.iterdir()):
            path.chmod(0o777)  # what holds must be the sandbox: no closed door stands before it
            if uid is not None:
                os.chown(path, uid, uid)
        udp = _echo(stack)
        sibling = subprocess.Popen(["sleep", "300"], env={"TOKEN": token, "HELD_BY": "a sibling"}, user=uid, group=uid)
        stack.callback(lambda: (sibling.kill(), sibling.wait()))
        key = _shared_memory(stack)
        yield (
            directory,
            {
                "SECRET": str(directory / "secret"),
                "BESIDE": str(directory / "beside"),
                "HIDDEN_HOME": str(directory / "home"),
                "MASK": str(directory / "mask"),
                "SOCKET": str(directory / "socket"),
                "ABSTRACT": name,
                "DEV_SHM": str(shm),
                "PORT": str(tcp.getsockname()[1]),
                "UDP_PORT": str(udp),
                "SIBLING": str(sibling.pid),
                "SHM_KEY": str(key),
                "TMP_FILE": str(directory / "log"),
                "TMP_NAME": f"/tmp/{name}-fill",
                "SHM_NAME": f"/dev/shm/{name}-fill",
                "QUEUE": _queue(stack, name),
                **_stand_ins(directory, sibling.pid),
                "HALF": token[:12],
                "OTHER_HALF": token[12:],
                "WORKSPACE": str(directory / "workspace"),
            },
        )


# What is the machine's own is aimed at from inside a sandbox alone. Bare, a sentinel stands in for it.
REAL = {
    "INIT": "1",
    "PASSWORDS": "/etc/shadow",
    "SYSTEM": "/usr",
    "SETTING": "/proc/sys/kernel/core_pattern",
    "PIDS": "",
}


def _stand_ins(directory: Path, sibling: int) -> dict[str, str]:
    secret, beside = str(directory / "secret"), str(directory / "beside")
    return {"INIT": str(sibling), "PASSWORDS": secret, "SYSTEM": beside, "SETTING": secret, "PIDS": str(sibling)}


def _echo(stack: ExitStack) -> int:
    """A datagram server that answers, until the end."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))

    def serve() -> None:
        while (got := server.recvfrom(100))[0] != b"stop":
            server.sendto(got[0], got[1])

    thread = threading.Thread(target=serve)
    thread.start()

    def stop() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"stop", server.getsockname())
        thread.join()
        server.close()

    stack.callback(stop)
    return int(server.getsockname()[1])


def _shared_memory(stack: ExitStack) -> int:
    libc = ctypes.CDLL(None)
    key = 0x5EC0_0000 | os.getpid() & 0xFFFF
    segment = libc.shmget(key, 4096, 0o1666)
    assert segment >= 0
    stack.callback(lambda: libc.shmctl(segment, 0, None))
    return key


def _queue(stack: ExitStack, name: str) -> str:
    """A POSIX message queue; its name."""
    libc, path = ctypes.CDLL(None), f"/{name}".encode()
    smallest = (ctypes.c_long * 8)(0, 1, 16)  # a user may have 800 KB of queues, and the usual one takes a tenth of it
    queue = libc.mq_open(path, os.O_CREAT | os.O_RDONLY, 0o666, smallest)
    assert queue >= 0
    stack.callback(lambda: (os.close(queue), libc.mq_unlink(path)))
    os.fchmod(queue, 0o666)
    return path.decode()


WORKSPACE_FILES = {
    ".git/config": "",
    ".git/HEAD": "ref: refs/heads/main",
    ".git/modules/sub/hooks/README": "",
    ".git/worktrees/tree/commondir": "../..",
    ".git/rebase-merge/git-rebase-todo": "",
    ".gitmodules": "path = sub\n",
    "sub/.git": "gitdir: ../.git/modules/sub",
    ".envrc": "",
    "state/broker.sock": "the broker's",
}


def _ignore_missing(_: object, __: object, error: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def refill_workspace(workspace: Path) -> None:
    """The workspace, as new, and its owner's."""
    for path in workspace.iterdir():  # a broker takes away meanwhile what it has held there
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=_ignore_missing)
        else:
            path.unlink(missing_ok=True)
    for name, text in WORKSPACE_FILES.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    (workspace / ".git/hooks").mkdir()
    owner = workspace.stat()
    for path in workspace.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid)


class AttackRunner:
    """One way of running attacks."""

    def __init__(self, directory: Path, targets: dict[str, str], without: str | None) -> None:
        """`without`: the layer to leave out, "" for none; None: no sandbox at all."""
        self._workspace = directory / "workspace"
        self._records = str(directory / "held")
        self._log = directory / "log"
        self._targets = targets
        self._sandboxed = without is not None
        self._machine = without_layer(machine.detect_machine(), without or "")
        self._plans: dict[tuple[str, str], SandboxPlan] = {}

    def _plan(self, attack: Attack) -> SandboxPlan:
        key = (attack.runtime, attack.profile)
        if key not in self._plans:
            policy = Policy(
                profile="read-only" if attack.profile == "read-only" else "workspace-write",
                limits=LIMITS,
                hidden_paths=[str(self._workspace / "state")],
            )
            interpreter = PROGRAMS[attack.runtime][0]
            self._plans[key] = prepare_plan(
                policy, self._machine, attack.runtime, interpreter, {"PATH": "/usr/bin:/bin"}
            )
        return self._plans[key]

    def run(self, attack: Attack) -> str:
        """OUT, HELD and why, or what became of the process instead."""
        refill_workspace(self._workspace)
        directory_fd = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY)
        log_fd = os.open(self._log, os.O_RDONLY)
        try:
            return self._with(attack, (directory_fd, log_fd))
        finally:
            os.close(directory_fd)
            os.close(log_fd)

    def _with(self, attack: Attack, extra: tuple[int, int]) -> str:
        plan = self._plan(attack)
        wrapper: Any = BubblewrapSandbox(plan, extra) if self._sandboxed else Unsandboxed(extra)
        first = FIRST_FD + len(wrapper.fds) - 2
        real = REAL if self._sandboxed else {}
        env = {**plan.env, **self._targets, **real, "DIRECTORY_FD": str(first), "LOG_FD": str(first + 1)}
        child = InterpreterProcess(InterpreterCommand([*PROGRAMS[attack.runtime], program(attack)], env, wrapper))
        held: list[int] = []
        try:
            result = _until(child, b"here\n")
            if result != b"here\n":
                return f"BROKEN did not start: {result!r} {_until(child, b'', child.err)!r}"
            if self._sandboxed:
                held += create_placeholders(plan.policy, str(self._workspace), self._records)
                error = wrapper.attach(plan.policy, str(self._workspace)).error
                if error:
                    return f"BROKEN no workspace: {error}"
            child.write_stdin(b"\n")
            result = _until(child, b"")
            return result.decode(errors="replace").strip() or f"HELD died: {_exit_text(child)}"
        finally:
            child.kill()
            _exit_text(child)
            if self._sandboxed:
                wrapper.close()
            child.close()
            for fd in held:
                os.close(fd)
            remove_placeholders(self._records)


class Unsandboxed:
    """No sandbox, but the same descriptors."""

    prefix = ()

    def __init__(self, extra: tuple[int, ...]) -> None:
        self.fds = extra

    def enter(self) -> None:
        os.environ.clear()

    def on_fork(self, pid: int) -> None:
        del pid

    def death_cause(self) -> str | None:
        return None


def _until(child: InterpreterProcess, end: bytes, stream: int | None = None) -> bytes:
    """Return the output, up to an ending, or all of it."""
    fd, result = stream or child.out, b""
    stop = time.monotonic() + TIMEOUT_S
    while not (end and result.endswith(end)) and select.select([fd], [], [], max(0.0, stop - time.monotonic()))[0]:
        data = child.read(fd)
        if not data:
            break
        result += data
    return result


def _exit_text(child: InterpreterProcess) -> str:
    select.select([child.exit_fd], [], [], TIMEOUT_S)
    try:
        return child.poll_exit() or "lives"
    except ChildProcessError:
        return "buried"


def without_layer(found: machine.Machine, layer: str) -> machine.Machine:
    """The machine without one layer, or a plan that leaves it out."""
    if layer == "landlock":
        return replace(found, landlock_abi=0)
    if layer == "memory":
        return replace(found, cgroups=cgroup.CgroupRoot())
    if layer == "seccomp":
        vars(seccomp)["build_filter"] = lambda *_, **__: struct.pack("=HBBI", 6, 0, 0, 0x7FFF_0000)  # allow
    if layer == "network":
        namespaces = vars(plans)["_namespaces"]
        vars(plans)["_namespaces"] = lambda *given: (each for each in namespaces(*given) if each != "--unshare-net")
    return found


def select_attacks(who: str, how: str) -> list[Attack]:
    layer = how.partition("without-")[2]
    return [
        attack for attack in ATTACKS if not (attack.group and who == "user") and (not layer or layer in attack.layers)
    ]


def main(who: str, how: str) -> None:
    if os.getuid() == 0:
        mounts.unshare(mounts.CLONE_NEWNS | CLONE_NEWUTS)
        mounts.make_private()
        if who == "user":
            become_ordinary_user()
    started = time.monotonic()
    with sentinels() as (directory, targets):
        if os.getuid() == 0:
            mounts.tmpfs(str(directory / "mask"), "size=64k")  # something to be unmounted
        runner = AttackRunner(directory, targets, how.partition("without-")[2] if how != "bare" else None)
        result = {attack.id: runner.run(attack) for attack in select_attacks(who, how)}
        if os.getuid() == 0:
            for name in ("mask", "beside"):  # what got out may have taken the one away, and made the other
                while ctypes.CDLL(None).umount2(str(directory / name).encode(), 2) == 0:
                    pass
    print(json.dumps({"results": result, "seconds": time.monotonic() - started}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One run of a package tool: the directory in which it makes the next generation, and its command and sandbox."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from replwire.limits import MIB
from replwire.packages import InstallerSettings
from replwire.policy import Policy, SandboxLimits
from replwire.private_directories import make_private_directory
from replworker.packages.layers import PackagePaths, link_tree
from replworker.packages.tools import PipTool, UvTool
from replworker.runtimes.process_start import InterpreterCommand
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.machine import Machine
from replworker.sandbox.prepare import prepare_plan

_LIMITS = SandboxLimits(
    memory_bytes=4096 * MIB, cpu_percent=400, file_bytes=16_384 * MIB, open_files=4096, tmp_bytes=4096 * MIB
)


@dataclass(frozen=True, slots=True)
class InstallerPlace:
    """Place where installers run: the machine, None without a sandbox, and the number of the session's host user."""

    machine: Machine | None
    slot: int


class InstallerJob:
    """Directory of one run. With builds it has its own cache: code of a package must not reach the common one.

    Raises:
        OSError: it cannot be created
    """

    def __init__(self, paths: PackagePaths, settings: InstallerSettings, number: int) -> None:
        make_private_directory(f"{paths.shared}/jobs")
        self._lock = os.open(f"{paths.shared}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # the cache is not emptied meanwhile
        self.directory = f"{paths.shared}/jobs/{os.getpid()}-{number}"
        shutil.rmtree(self.directory, ignore_errors=True)
        os.mkdir(self.directory, 0o700)
        self._writable = self.directory if settings.builds else paths.shared
        self.cache = f"{self._writable}/cache"
        os.makedirs(self.cache, 0o700, exist_ok=True)
        self.target = f"{self.directory}/target"
        self._sandbox: BubblewrapSandbox | None = None

    def begin(self, older: str | None) -> None:
        """Make the directory of the next generation, with the contents of an older one."""
        if older is None:
            os.mkdir(self.target, 0o755)
        else:
            link_tree(older, self.target)

    def write(self, name: str, text: str) -> str:
        """Write a file for the tool, and return its path."""
        path = Path(self.directory, name)
        path.touch(0o600)
        path.write_text(text)
        return str(path)

    def command(self, argv: list[str], tool: UvTool | PipTool, place: InstallerPlace) -> InterpreterCommand:
        """Return the command of the tool, sandboxed where sessions are.

        Raises:
            SandboxUnavailable: the machine cannot provide the sandbox
            OSError: a path cannot be granted
        """
        for name, text in tool.index.files.items():
            self.write(name, text)
        env = {**tool.index.env, "NO_COLOR": "1", **tool.environment(self.cache, self.directory)}
        if place.machine is None:
            return InterpreterCommand(argv, {"PATH": os.defpath, "HOME": self.directory, **env})
        policy = Policy(
            network="host",
            writable_paths=[self._writable],
            readable_paths=list(tool.index.paths),
            protected_paths=[],
            limits=_LIMITS,
        )
        also = tool.paths()
        plan = prepare_plan(policy, place.machine, "installer", tool.program, env, slot=place.slot, also=also)
        self._sandbox = BubblewrapSandbox(plan)
        return InterpreterCommand(argv, plan.env, self._sandbox)

    def remove(self) -> None:
        """Remove the directory and the sandbox, whose processes have ended."""
        if self._sandbox is not None:
            self._sandbox.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)

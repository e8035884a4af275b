"""One run of a package tool: the directory in which it makes the next generation, and its command and sandbox."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from replwire.limits import MIB
from replwire.network import NetworkRules
from replwire.packages import InstallerSettings
from replwire.policy import Policy, SandboxLimits
from replwire.private_directories import make_private_directory
from replworker.packages.index_settings import LOOPBACK_NAME
from replworker.packages.layers import PackagePaths, link_tree
from replworker.packages.tools import PackageTool
from replworker.runtimes.process_start import InterpreterCommand
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.machine import Machine
from replworker.sandbox.prepare import prepare_plan

_LIMITS = SandboxLimits(
    memory_bytes=4096 * MIB, cpu_percent=400, file_bytes=16_384 * MIB, open_files=4096, tmp_bytes=4096 * MIB
)


@dataclass(frozen=True, slots=True)
class InstallerPlace:
    """Place where installers run.

    Attributes:
        machine: the machine; None without a sandbox
        slot: number of the session's host user
        egress: socket of the egress proxy
        upstream_proxy: proxy of the settings that the egress proxy goes through; empty: none
    """

    machine: Machine | None
    slot: int
    egress: str = ""
    upstream_proxy: str = ""


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
        self.sandbox: BubblewrapSandbox | None = None
        self.rules = NetworkRules()

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

    def command(self, argv: list[str], tool: PackageTool, place: InstallerPlace) -> InterpreterCommand:
        """Return the command of the tool, sandboxed where sessions are.

        Raises:
            SandboxUnavailable: the machine cannot provide the sandbox
            OSError: a path cannot be granted
        """
        if place.machine is None:
            for name, text in tool.index.files.items():
                self.write(name, text)
            own = {"PATH": os.defpath, "HOME": self.directory, "NO_COLOR": "1"}
            return InterpreterCommand(argv, own | tool.index.env | tool.environment(self.cache, self.directory))
        index = tool.index.through_proxy()
        rules = self.rules = NetworkRules(
            allowed_hosts=list(index.hosts),
            private_networks=["0.0.0.0/0", "::/0"],  # the hosts are the operator's choice
            host_addresses=[f"{LOOPBACK_NAME}=127.0.0.1"],
            upstream_proxy=place.upstream_proxy,
            origin="the hosts of the package index",
        )
        env = {**index.env, "NO_COLOR": "1", **tool.environment(self.cache, self.directory)}
        for name, text in index.files.items():
            self.write(name, text)
        policy = Policy(
            network="list",
            allowed_hosts=rules.allowed_hosts,
            writable_paths=[self._writable],
            readable_paths=list(tool.index.paths),
            protected_paths=[],
            limits=_LIMITS,
        )
        also = tool.paths()
        plan = prepare_plan(policy, place.machine, "installer", tool.program, env, slot=place.slot, also=also)
        if self.sandbox is not None:
            self.sandbox.close()
        self.sandbox = BubblewrapSandbox(plan)
        return InterpreterCommand(argv, plan.env, self.sandbox)

    def remove(self) -> None:
        """Remove the directory and the sandbox, whose processes have ended."""
        if self.sandbox is not None:
            self.sandbox.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)

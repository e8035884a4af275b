"""bubblewrap sandbox around one interpreter: a single-use `SandboxWrapper`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from replwire.limits import MIB
from replwire.policy import Policy
from replworker.egress.listeners import Listener
from replworker.sandbox import cgroup, identity, private_mounts, workspace
from replworker.sandbox.mount_helper import AttachResult, MountHelper
from replworker.sandbox.plan import ARGUMENTS_FD, SandboxPlan
from replworker.sandbox.rights import Rights, acting_as

ATTACH_S = 5.0
_EMPTY_S = 2.0


class BubblewrapSandbox:
    """bubblewrap sandbox of one interpreter.

    `extra` descriptors are inherited after the sandbox's own and stay open inside, to test such leaks.

    Raises:
        OSError: the control group cannot be created
    """

    def __init__(self, plan: SandboxPlan, extra: tuple[int, ...] = ()) -> None:
        self._plan = plan
        self.has_holder = plan.has_holder
        self.prefix = (plan.bwrap, "--args", str(ARGUMENTS_FD), "--", *plan.step)
        arguments = "\0".join(plan.options).encode() + b"\0"
        self._own_fds = [_memfd(data) for data in (arguments, plan.filter, *(text.encode() for text in plan.texts))]
        self.fds = (*self._own_fds, *extra)
        self.group = cgroup.Cgroup(plan.machine.cgroups, plan.policy.limits)
        self.group.create()
        self._helper: MountHelper | None = None

    @property
    def run_as(self) -> int | None:
        """Host user of the session, if the broker is root."""
        return self._plan.run_as

    # --- SandboxWrapper ---

    def enter(self) -> None:
        """Prepare the forked child: join the group; for a root broker, set up mounts and drop to the session's user."""
        self.group.join()
        run_as = self._plan.run_as
        if run_as is not None:
            private_mounts.expose_paths(
                self._plan.open_way, self._plan.owned, run_as, self._plan.requested, self._plan.rights
            )
            identity.drop_to_user(run_as)

    def on_fork(self, pid: int) -> None:
        """Close inherited descriptors and start the mount helper."""
        for fd in self._own_fds:
            os.close(fd)
        if self._plan.late or self._plan.policy.network == "list":
            self._helper = MountHelper(pid, self._plan.run_as)

    def death_cause(self) -> str | None:
        """Return the memory limit the interpreter was killed for, if it was."""
        if not self.group.was_oom_killed():
            return None
        if self.group.has_hit_own_limit():
            return f"out of memory: {self._plan.policy.limits.memory_bytes // MIB} MiB (sandbox.memory-bytes)"
        return "out of memory: a limit outside the session was reached, of an outer control group or the machine"

    def memory_group(self) -> tuple[Path, int] | None:
        """Return the control group that limits its memory and the group's version, or None."""
        directory = self.group.directories.get("memory")
        return None if directory is None else (directory, self._plan.machine.cgroups.version)

    # --- the session's directory ---

    def attach(
        self,
        policy: Policy,
        directory: str | None,
        rights: Rights | None = None,
        listeners: Sequence[Listener] = (),
    ) -> AttachResult:
        """Mount the workspace into the running sandbox at its own path, and open sockets in its network namespace.

        Call it once, before any user code runs.

        Args:
            policy: may be tighter in its paths than the policy the sandbox was started with
            directory: a real path accepted by `workspace.check_directory`; None for no workspace
            rights: the rights of the session's owner, with which everything is opened
            listeners: the sockets
        """
        helper = self._helper
        if helper is None or helper.is_dismissed or (directory is not None and not self._plan.late):
            return AttachResult("this sandbox does not support mounting a directory after its start", [])
        try:
            with acting_as(rights):
                wanted = (
                    [] if directory is None else workspace.workspace_mounts(policy, directory, self._plan.read_only)
                )
        except (workspace.DirectoryRefused, OSError) as error:
            helper.dismiss()
            return AttachResult(str(error), [])
        return helper.attach(wanted, ATTACH_S, rights, listeners)

    def dismiss_helper(self) -> None:
        """Let the mount helper exit: nothing more is mounted."""
        if self._helper is not None:
            self._helper.dismiss()

    def stop_helper(self) -> None:
        """Reap the mount helper, which takes milliseconds if it was not dismissed before."""
        if self._helper is not None:
            self._helper.stop()
            self._helper = None

    def close(self) -> None:
        """Clean up after the interpreter has exited."""
        self.stop_helper()
        self.group.remove(_EMPTY_S)


def _memfd(data: bytes) -> int:
    """Return a descriptor that yields `data`, once."""
    fd = os.memfd_create("replctl", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd

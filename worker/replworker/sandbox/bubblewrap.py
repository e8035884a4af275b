"""One sandbox around one interpreter: a `SandboxWrapper` for `InterpreterProcess`, used once."""

from __future__ import annotations

import os
from pathlib import Path

from replwire.limits import MIB
from replwire.policy import Policy
from replworker.sandbox import cgroup, identity, private_mounts, workspace
from replworker.sandbox.mount_helper import MountHelper
from replworker.sandbox.plan import ARGUMENTS_FD, SandboxPlan
from replworker.sandbox.rights import Rights, acting_as

ATTACH_S = 5.0
_EMPTY_S = 2.0


class BubblewrapSandbox:
    """What stands between an interpreter and the machine. Raises OSError when its group cannot be made.

    `extra` descriptors are inherited after ours; they stay open inside, for tests of what such a leak would give.
    """

    def __init__(self, plan: SandboxPlan, extra: tuple[int, ...] = ()) -> None:
        self._plan = plan
        self.prefix = (plan.bwrap, "--args", str(ARGUMENTS_FD), "--", *plan.step)
        arguments = "\0".join(plan.options).encode() + b"\0"
        self._own_fds = [_memfd(data) for data in (arguments, plan.filter, *(text.encode() for text in plan.texts))]
        self.fds = (*self._own_fds, *extra)
        self.group = cgroup.Cgroup(plan.machine.cgroups, plan.policy.limits)
        self.group.create()
        self._helper: MountHelper | None = None

    # --- Wrapping ---

    def enter(self) -> None:
        """In the forked child: into the group, then, for a root broker, to the stage and to another user."""
        self.group.join()
        run_as = self._plan.run_as
        if run_as is not None:
            private_mounts.expose_paths(
                self._plan.open_way, self._plan.owned, run_as, self._plan.asked, self._plan.rights
            )
            identity.drop_to_user(run_as)

    def on_fork(self, pid: int) -> None:
        """Let go of what the child has inherited, and post the one who brings the workspace."""
        for fd in self._own_fds:
            os.close(fd)
        if self._plan.late:
            self._helper = MountHelper(pid, self._plan.run_as)

    def death_cause(self) -> str | None:
        """The limit of memory that it died of, if the kernel has killed for one."""
        if not self.group.was_oom_killed():
            return None
        if self.group.has_hit_own_limit():
            return f"out of memory: {self._plan.policy.limits.memory_bytes // MIB} MB"
        return "killed for memory by a limit outside of the session's own: of an outer control group, or the machine"

    def memory_group(self) -> tuple[Path, int] | None:
        """The control group that counts and bounds its memory, and its version; None where there is none."""
        folder = self.group.folders.get("memory")
        return None if folder is None else (folder, self._plan.machine.cgroups.version)

    # --- a session's folder ---

    def attach(self, policy: Policy, folder: str, rights: Rights | None = None) -> str | None:
        """Give the running interpreter its workspace, at its own path; why it could not be done, or None.

        `folder` is a real path that `workspace.check` has let through. Once, before any code of the user has run.
        `policy` may be tighter in its paths than the one that the sandbox was started with; all is opened with
        `rights`, those of the session's owner.
        """
        if self._helper is None:
            return "this sandbox was started without a way to mount a folder later"
        usher, self._helper = self._helper, None
        try:
            with acting_as(rights):
                wanted = workspace.workspace_mounts(policy, folder, self._plan.kept)
        except (workspace.DirectoryRefused, OSError) as error:
            usher.stop()
            return str(error)
        return usher.attach(wanted, ATTACH_S, rights)

    def decline_workspace(self) -> None:
        """No folder will come: nobody has to wait for one."""
        if self._helper is not None:
            self._helper.stop()
            self._helper = None

    def close(self) -> None:
        """After the interpreter's end: leave nothing behind."""
        self.decline_workspace()
        self.group.remove(_EMPTY_S)


def _memfd(data: bytes) -> int:
    """Bytes as a descriptor, to be read once."""
    fd = os.memfd_create("replctl", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd

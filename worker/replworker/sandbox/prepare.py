"""Preparation of a sandbox plan: looks up on disk what `build_plan` needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from replwire.policy import Policy, is_within
from replworker.sandbox import bounded_read, identity, mounts, private_mounts, runtime_paths, workspace
from replworker.sandbox import plan as plans
from replworker.sandbox.machine import Machine
from replworker.sandbox.plan import SandboxPlan, SandboxUnavailable
from replworker.sandbox.rights import Grant, acting_as

SANDBOX_INIT = str(Path(__file__).with_name("sandbox_init.py"))
_RUNTIMES = str(Path(__file__).parents[1] / "runtimes")


@dataclass(frozen=True, slots=True)
class ManagedEnvironment:
    """A named environment of the broker: its directory and the interpreter it was created with."""

    directory: str
    interpreter: str


def prepare_plan(
    policy: Policy,
    machine: Machine,
    runtime: str,
    interpreter: str,
    env: dict[str, str],
    *,
    slot: int = 0,
    directory: str | None = None,
    home: str | None = None,
    also: tuple[str, ...] = (),
    trusted: bool = True,
    managed: ManagedEnvironment | None = None,
    grant: Grant = workspace.EVERYTHING,
    has_holder: bool = False,
    files: Mapping[str, str] | None = None,
    packages: str | None = None,
) -> SandboxPlan:
    """Plan the sandbox of an interpreter.

    Args:
        policy: the session's policy
        machine: facts about this machine
        runtime: `python`, `node`, `bash`, or an extension's runtime
        interpreter: path of the program
        env: environment variables for the session
        slot: number that selects the session's host user under a root broker
        directory: real path accepted by `check_directory`, mounted at the start; only if `SandboxPlan.late` is False
        home: home directory; None: the broker's
        also: further paths that the runtime reads
        trusted: the operator chose the interpreter; else it may be a session's work, runs only after the limits are
            set, and may use only paths the session could have as a directory
        managed: the broker's environment it belongs to, if any
        grant: rights of the session's owner
        files: generated files: path to contents
        has_holder: the sandbox outlasts its first interpreter, which has to report its start (see sandbox_init.py)
        packages: directory with packages that the session installs

    Raises:
        SandboxUnavailable: the machine cannot provide this sandbox
        DirectoryRefused: a path cannot be granted
    """
    home = home or os.path.expanduser("~")
    python = interpreter if runtime == "python" and trusted else os.path.realpath(sys.executable)
    requested: tuple[str, ...] = ()
    try:
        needs = runtime_paths.find_runtime_paths(
            *({interpreter, python} if trusted else {python}), more=(SANDBOX_INIT, _RUNTIMES, *also)
        )
        if not trusted:
            theirs = _paths_of_named(policy, interpreter, managed, grant, home)
            requested = (
                tuple(path for path in theirs.paths if not is_within(path, needs.paths)) if managed is None else ()
            )
            needs = theirs.with_paths(needs)
    except FileNotFoundError as error:
        raise SandboxUnavailable(f"{error.filename}: {error.strerror}", "use an existing interpreter") from None
    except bounded_read.Oversized as error:
        raise SandboxUnavailable(str(error), "use another environment") from None
    run_as = identity.uid_for(slot) if machine.uid == 0 else None
    return plans.build_plan(
        policy,
        machine,
        needs,
        runtime=runtime,
        python=python,
        inner=SANDBOX_INIT,
        env=env,
        granted=_granted_mounts(policy, needs.read_only),
        found=() if trusted else [(path, _file_identity(path)) for path in needs.paths],
        hidden=_hidden_mounts(policy, home, run_as, needs.paths),
        workspace=_initial_mounts(policy, directory, needs.read_only, grant),
        slot=slot,
        requested=requested,
        rights=grant.rights,
        has_holder=has_holder,
        files=files,
        packages=packages,
    )


def _granted_mounts(policy: Policy, read_only: tuple[str, ...]) -> list[workspace.SandboxMount]:
    """Return the mounts of the paths that the policy grants to every session."""
    paths = (*policy.readable_paths, *policy.writable_paths)
    for path in paths:
        if not os.path.exists(path):
            raise SandboxUnavailable(
                f"{path}, which is granted to sessions, does not exist", "create it or correct the setting"
            )
    return [
        mount
        for path in paths
        for mount in workspace.workspace_mounts(policy, path, read_only, writable=path in policy.writable_paths)
    ]


def _paths_of_named(
    policy: Policy, interpreter: str, managed: ManagedEnvironment | None, grant: Grant, home: str
) -> runtime_paths.RuntimePaths:
    """Find the paths of an interpreter that the operator did not choose, as its owner sees them.

    An environment of the broker may build only on the operator's interpreter.

    Raises:
        DirectoryRefused: the owner may not use a path
    """

    def may_read(path: str) -> bool:
        with acting_as(grant.rights):
            return _may_have_workspace(policy, path, grant.home or home, grant)

    with acting_as(grant.rights if managed is None else None):
        found = runtime_paths.find_runtime_paths(interpreter, may_read=may_read)
    if managed is None:
        own: tuple[str, ...] = (*policy.readable_paths, *policy.writable_paths)
        for path in found.paths:
            if not is_within(path, own):
                workspace.check_owner_directories(grant, path, path)
    elif grant.is_restricted:
        own = (managed.directory, *runtime_paths.find_runtime_paths(managed.interpreter).paths)
        strange = [path for path in found.paths if not is_within(path, own) and not may_read(path)]
        if strange:
            raise workspace.DirectoryRefused(
                f"{managed.directory} builds on {strange[0]}, which does not belong to the broker"
            )
    return found


def _initial_mounts(
    policy: Policy, directory: str | None, kept: tuple[str, ...], grant: Grant
) -> list[workspace.SandboxMount]:
    if directory is None:
        return []
    with acting_as(grant.rights):
        return workspace.workspace_mounts(policy, directory, kept)


def _file_identity(path: str) -> str:
    try:
        fd = mounts.open_strictly(path)
    except OSError as error:
        raise SandboxUnavailable(f"{path}: {error.strerror}", "use an environment that is not being modified") from None
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    return f"{status.st_dev}:{status.st_ino}"


def _may_have_workspace(policy: Policy, path: str, home: str, grant: Grant) -> bool:
    try:
        return workspace.check_directory(policy, path, home, grant) == path
    except workspace.DirectoryRefused:
        return False


def _hidden_mounts(
    policy: Policy, home: str, run_as: int | None, reached: tuple[str, ...]
) -> list[workspace.SandboxMount]:
    """Return mounts that hide secrets, except those the session's user cannot reach anyway."""
    if policy.read == "host":
        secrets, roots = (*plans.secret_paths(home), *policy.hidden_paths), ["/"]
    else:
        secrets, roots = tuple(policy.hidden_paths), list(reached)
    found = []
    for path in workspace.outermost_existing(map(os.path.realpath, secrets)):
        root = next((root for root in roots if is_within(path, [root])), None)
        if root is not None and (run_as is None or private_mounts.first_closed_dir(path, run_as, root) is None):
            found.append(workspace.hide(path))
    return found

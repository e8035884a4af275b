"""Sandbox of a session in its worker: prepared before the interpreter starts, given its directory on assignment."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from replwire.link import AssignBody
from replwire.policy import Policy
from replworker.grants import GrantResolver
from replworker.runtimes.environments import ResolvedInterpreter
from replworker.sandbox.bubblewrap import BubblewrapSandbox
from replworker.sandbox.machine import Machine
from replworker.sandbox.placeholders import create_placeholders
from replworker.sandbox.prepare import prepare_plan
from replworker.sandbox.rights import Grant, Rights, acting_as
from replworker.sandbox.workspace import EVERYTHING, DirectoryRefused, check_directory, check_owner_directories
from replworker.snapshots import package_directory

GetGrant = Callable[[], Grant]  # raises DirectoryRefused
_OWN = ("HOME", "TMPDIR")  # the sandbox's own; other values would name missing directories
_OWN_PREFIXES = ("XDG_", "SSH_", "DBUS_")  # these point outside


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """Sandbox part of the worker's arguments.

    `slot` is unique among live sessions; `directory` is mounted at the start.
    """

    policy: Policy
    machine: Machine
    slot: int
    directory: str | None = None


@dataclass(slots=True)
class SessionSandbox:
    """Sandbox around one interpreter."""

    policy: Policy
    wrapper: BubblewrapSandbox
    env: dict[str, str]
    directory: str | None  # what was mounted at the start
    records: str  # directory of placeholder records
    held_fds: tuple[int, ...] = ()

    def enter_directory(self, directory: str | None, needed: bool, granted: GetGrant) -> tuple[str | None, str | None]:
        """Mount the session's directory. Return it, and why there is none although one was requested.

        Raises:
            DirectoryRefused: the directory is required and refused
        """
        if directory is None:
            self.wrapper.decline_workspace()
            return None, None
        try:
            grant = granted()
            real = _check_as_owner(self.policy, directory, grant)
            if real != self.directory and (error := self._attach(real, grant.rights)) is not None:
                raise DirectoryRefused(error)
        except DirectoryRefused as refused:
            if needed:
                raise
            self.wrapper.decline_workspace()
            return None, str(refused)
        return real, None

    def _attach(self, directory: str, rights: Rights | None) -> str | None:
        try:
            self.held_fds = create_placeholders(self.policy, directory, self.records, rights)
        except OSError as error:
            return f"{directory}: cannot create placeholders for protected files: {error.strerror}"
        return self.wrapper.attach(self.policy, directory, rights)

    @staticmethod
    def check_env(env: dict[str, str]) -> None:
        """Reject variables that the sandbox sets itself.

        Raises:
            DirectoryRefused: such a variable is given
        """
        for name in env:
            if name in _OWN or name.startswith(_OWN_PREFIXES):
                raise DirectoryRefused(f"env: {name} is set by the sandbox")


def prepare_sandbox(
    runtime: str,
    told: SandboxRequest,
    found: ResolvedInterpreter,
    reads: tuple[str, ...] = (),
    grant: Grant = EVERYTHING,
    *,
    records: str,
) -> SessionSandbox:
    """Prepare the sandbox of an interpreter.

    Args:
        runtime: name of the runtime
        told: sandbox part of the worker's arguments
        found: the interpreter
        reads: further paths that the runtime reads
        grant: rights of the owner, if it is known
        records: the broker's directory for records of placeholders

    Raises:
        SandboxUnavailable: the machine cannot provide this sandbox
        DirectoryRefused: a path cannot be granted
        OSError: a file cannot be read
    """
    directory = _initial_directory(told, grant)
    held = () if directory is None else create_placeholders(told.policy, directory, records, grant.rights)
    also = (f"{package_directory('dill')}/dill",) if runtime == "python" else reads
    plan = prepare_plan(
        told.policy,
        told.machine,
        runtime,
        found.executable,
        found.env,
        slot=told.slot,
        directory=directory,
        also=also,
        trusted=not found.named,
        kept=found.kept,
        grant=grant,
        has_holder=runtime == "python",
    )
    return SessionSandbox(told.policy, BubblewrapSandbox(plan), plan.env, directory, records, held)


def enter_directory(
    confinement: SessionSandbox | None, grants: GrantResolver, claim: AssignBody, env: dict[str, str]
) -> tuple[str | None, str | None]:
    """Return the session's working directory, and why there is none although one was requested.

    Raises:
        DirectoryRefused: the directory is required and refused
    """
    if confinement is not None:
        confinement.check_env(env)
        return confinement.enter_directory(claim.cwd, claim.cwd_needed, lambda: grants.resolve(claim.asker))
    grants.check_unconfined(claim.asker)
    directory = claim.cwd
    if directory is not None and (grant := grants.resolve(claim.asker)).directories:
        check_owner_directories(grant, directory, os.path.realpath(directory))
    if directory is not None and not claim.cwd_needed and not os.path.isdir(directory):
        return None, f"{directory} is not a directory on this machine"
    return directory, None


def _initial_directory(told: SandboxRequest, grant: Grant) -> str | None:
    """Return the directory to mount at the start, or None if it is refused; the assignment checks again."""
    if told.directory is None:
        return None
    try:
        return _check_as_owner(told.policy, told.directory, grant)
    except DirectoryRefused:
        return None


def _check_as_owner(policy: Policy, directory: str, grant: Grant) -> str:
    with acting_as(grant.rights):
        return check_directory(policy, directory, grant.home or os.path.expanduser("~"), grant)

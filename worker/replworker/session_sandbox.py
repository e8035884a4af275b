"""A session's sandbox as its worker knows it: made before the interpreter starts, given its folder at the claim."""

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

GetGrant = Callable[[], Grant]  # raises Refused
_OWN = ("HOME", "TMPDIR")  # of the sandbox: a session that set them would write where nothing is
_OWN_PREFIXES = ("XDG_", "SSH_", "DBUS_")  # these lead out of it


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """What a worker is told of the sandbox. `slot` is no other live session's; `folder` is mounted at the start."""

    policy: Policy
    machine: Machine
    slot: int
    folder: str | None = None


@dataclass(slots=True)
class SessionSandbox:
    """The sandbox around one interpreter."""

    policy: Policy
    wrapper: BubblewrapSandbox
    env: dict[str, str]
    folder: str | None  # what was mounted at the start
    records: str  # folder for those of names that are held
    held_fds: tuple[int, ...] = ()

    def enter_directory(self, folder: str | None, needed: bool, granted: GetGrant) -> tuple[str | None, str | None]:
        """Give it the session's folder. The folder to go to, and why there is none although one was wished for.

        Raises Refused when it cannot be had and is needed.
        """
        if folder is None:
            self.wrapper.decline_workspace()
            return None, None
        try:
            grant = granted()
            real = _check_as_owner(self.policy, folder, grant)
            if real != self.folder and (error := self._attach(real, grant.rights)) is not None:
                raise DirectoryRefused(error)
        except DirectoryRefused as refused:
            if needed:
                raise
            self.wrapper.decline_workspace()
            return None, str(refused)
        return real, None

    def _attach(self, folder: str, rights: Rights | None) -> str | None:
        try:
            self.held_fds = create_placeholders(self.policy, folder, self.records, rights)
        except OSError as error:
            return f"{folder}: what is protected there cannot be held: {error.strerror}"
        return self.wrapper.attach(self.policy, folder, rights)

    @staticmethod
    def check_env(env: dict[str, str]) -> None:
        """Raises Refused for variables that are the sandbox's own."""
        for name in env:
            if name in _OWN or name.startswith(_OWN_PREFIXES):
                raise DirectoryRefused(f"env: {name} is the sandbox's own")


def prepare_sandbox(
    runtime: str,
    told: SandboxRequest,
    found: ResolvedInterpreter,
    reads: tuple[str, ...] = (),
    grant: Grant = EVERYTHING,
    *,
    records: str,
) -> SessionSandbox:
    """Prepare the sandbox for an interpreter, which needs to see `reads` too; `grant` is its owner's, if it has one.
    `records` is a folder of the broker's for what is made in workspaces. Raises Unavailable, Refused, OSError."""
    folder = _initial_directory(told, grant)
    held = () if folder is None else create_placeholders(told.policy, folder, records, grant.rights)
    also = (f"{package_directory('dill')}/dill",) if runtime == "python" else reads
    plan = prepare_plan(
        told.policy,
        told.machine,
        runtime,
        found.executable,
        found.env,
        slot=told.slot,
        folder=folder,
        also=also,
        trusted=not found.named,
        kept=found.kept,
        grant=grant,
    )
    return SessionSandbox(told.policy, BubblewrapSandbox(plan), plan.env, folder, records, held)


def enter_directory(
    confinement: SessionSandbox | None, grants: GrantResolver, claim: AssignBody, env: dict[str, str]
) -> tuple[str | None, str | None]:
    """The folder that a claimed session goes to, and why there is none although one was wished for. Raises Refused."""
    if confinement is not None:
        confinement.check_env(env)
        return confinement.enter_directory(claim.cwd, claim.cwd_needed, lambda: grants.resolve(claim.asker))
    grants.check_unconfined(claim.asker)
    folder = claim.cwd
    if folder is not None and (grant := grants.resolve(claim.asker)).directories:
        check_owner_directories(grant, folder, os.path.realpath(folder))
    if folder is not None and not claim.cwd_needed and not os.path.isdir(folder):
        return None, f"{folder} is not a folder here"
    return folder, None


def _initial_directory(told: SandboxRequest, grant: Grant) -> str | None:
    """The folder to mount at the start. One that is refused is none: the claim, which knows whether it is needed, asks
    again."""
    if told.folder is None:
        return None
    try:
        return _check_as_owner(told.policy, told.folder, grant)
    except DirectoryRefused:
        return None


def _check_as_owner(policy: Policy, folder: str, grant: Grant) -> str:
    with acting_as(grant.rights):
        return check_directory(policy, folder, grant.home or os.path.expanduser("~"), grant)

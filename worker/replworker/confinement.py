"""A session's sandbox as its worker knows it: made before the interpreter starts, given its folder at the claim."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from replwire.link import Claim
from replwire.policy import Policy
from replworker.confine.confined import Confined
from replworker.confine.machine import Machine
from replworker.confine.prepare import prepare
from replworker.confine.reserve import hold
from replworker.confine.rights import Grant, Rights, acting_as
from replworker.confine.workspace import EVERYTHING, Refused, check, check_directories
from replworker.grants import Grants
from replworker.runtimes.environments import Found
from replworker.snapshots import folder_of

Granted = Callable[[], Grant]  # raises Refused
_OWN = ("HOME", "TMPDIR")  # of the sandbox: a session that set them would write where nothing is
_OWN_PREFIXES = ("XDG_", "SSH_", "DBUS_")  # these lead out of it


@dataclass(frozen=True, slots=True)
class Confine:
    """What a worker is told of the sandbox. `slot` is no other live session's; `folder` is mounted at the start."""

    policy: Policy
    machine: Machine
    slot: int
    folder: str | None = None


@dataclass(slots=True)
class Confinement:
    """The sandbox around one interpreter."""

    policy: Policy
    wrapping: Confined
    env: dict[str, str]
    folder: str | None  # what was mounted at the start
    records: str  # folder for those of names that are held
    held: tuple[int, ...] = ()

    def enter(self, folder: str | None, needed: bool, granted: Granted) -> tuple[str | None, str | None]:
        """Give it the session's folder. The folder to go to, and why there is none although one was wished for.

        Raises Refused when it cannot be had and is needed.
        """
        if folder is None:
            self.wrapping.stay_without()
            return None, None
        try:
            grant = granted()
            real = _checked(self.policy, folder, grant)
            if real != self.folder and (error := self._attach(real, grant.rights)) is not None:
                raise Refused(error)
        except Refused as refused:
            if needed:
                raise
            self.wrapping.stay_without()
            return None, str(refused)
        return real, None

    def _attach(self, folder: str, rights: Rights | None) -> str | None:
        try:
            self.held = hold(self.policy, folder, self.records, rights)
        except OSError as error:
            return f"{folder}: what is protected there cannot be held: {error.strerror}"
        return self.wrapping.attach(self.policy, folder, rights)

    @staticmethod
    def check_env(env: dict[str, str]) -> None:
        """Raises Refused for variables that are the sandbox's own."""
        for name in env:
            if name in _OWN or name.startswith(_OWN_PREFIXES):
                raise Refused(f"env: {name} is the sandbox's own")


def confine(
    runtime: str, told: Confine, found: Found, reads: tuple[str, ...] = (), grant: Grant = EVERYTHING, *, records: str
) -> Confinement:
    """Prepare the sandbox for an interpreter, which needs to see `reads` too; `grant` is its owner's, if it has one.
    `records` is a folder of the broker's for what is made in workspaces. Raises Unavailable, Refused, OSError."""
    folder = _granted(told, grant)
    held = () if folder is None else hold(told.policy, folder, records, grant.rights)
    also = (f"{folder_of('dill')}/dill",) if runtime == "python" else reads
    plan = prepare(
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
    return Confinement(told.policy, Confined(plan), plan.env, folder, records, held)


def enter(
    confinement: Confinement | None, grants: Grants, claim: Claim, env: dict[str, str]
) -> tuple[str | None, str | None]:
    """The folder that a claimed session goes to, and why there is none although one was wished for. Raises Refused."""
    if confinement is not None:
        confinement.check_env(env)
        return confinement.enter(claim.cwd, claim.cwd_needed, lambda: grants.of(claim.asker))
    grants.check_unconfined(claim.asker)
    folder = claim.cwd
    if folder is not None and (grant := grants.of(claim.asker)).directories:
        check_directories(grant, folder, os.path.realpath(folder))
    if folder is not None and not claim.cwd_needed and not os.path.isdir(folder):
        return None, f"{folder} is not a folder here"
    return folder, None


def _granted(told: Confine, grant: Grant) -> str | None:
    """The folder to mount at the start. One that is refused is none: the claim, which knows whether it is needed, asks
    again."""
    if told.folder is None:
        return None
    try:
        return _checked(told.policy, told.folder, grant)
    except Refused:
        return None


def _checked(policy: Policy, folder: str, grant: Grant) -> str:
    with acting_as(grant.rights):
        return check(policy, folder, grant.home or os.path.expanduser("~"), grant)

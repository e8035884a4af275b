"""A session's sandbox as its worker knows it: made before the interpreter starts, given its folder at the claim."""

from __future__ import annotations

import os
from dataclasses import dataclass

from replwire.policy import Policy
from replworker.confine.confined import Confined
from replworker.confine.machine import Machine
from replworker.confine.prepare import prepare
from replworker.confine.workspace import Refused, check
from replworker.runtimes.environments import Found
from replworker.snapshots import folder_of

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

    def enter(self, folder: str | None, needed: bool) -> tuple[str | None, str | None]:
        """Give it the session's folder. The folder to go to, and why there is none although one was wished for.

        Raises Refused when it cannot be had and is needed.
        """
        if folder is None:
            self.wrapping.stay_without()
            return None, None
        try:
            real = check(self.policy, folder, os.path.expanduser("~"))
            if real != self.folder and (error := self.wrapping.attach(self.policy, real)) is not None:
                raise Refused(error)
        except Refused as refused:
            if needed:
                raise
            self.wrapping.stay_without()
            return None, str(refused)
        return real, None

    @staticmethod
    def check_env(env: dict[str, str]) -> None:
        """Raises Refused for variables that are the sandbox's own."""
        for name in env:
            if name in _OWN or name.startswith(_OWN_PREFIXES):
                raise Refused(f"env: {name} is the sandbox's own")


def confine(runtime: str, told: Confine, found: Found, reads: tuple[str, ...] = ()) -> Confinement:
    """Prepare the sandbox for an interpreter, which needs to see `reads` too. Raises Unavailable, Refused, OSError."""
    folder = _granted(told)
    also = (f"{folder_of('dill')}/dill",) if runtime == "python" else reads
    plan = prepare(
        told.policy, told.machine, runtime, found.executable, found.env, slot=told.slot, folder=folder, also=also,
        trusted=not found.named,
    )  # fmt: skip
    return Confinement(told.policy, Confined(plan), plan.env, folder)


def _granted(told: Confine) -> str | None:
    """The folder to mount at the start. One that is refused is none: the claim, which knows whether it is needed, asks
    again."""
    if told.folder is None:
        return None
    try:
        return check(told.policy, told.folder, os.path.expanduser("~"))
    except Refused:
        return None

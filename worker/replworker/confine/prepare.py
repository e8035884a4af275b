"""The plan for a runtime on this machine: what `plan` needs from the disk, looked up."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from replwire.policy import Policy, within
from replworker.confine import identity, mounts, plain, reach, stage, workspace
from replworker.confine import plan as plans
from replworker.confine.machine import Machine
from replworker.confine.plan import Plan, Unavailable
from replworker.confine.rights import Grant, acting_as

INNER = str(Path(__file__).with_name("inner.py"))
_RUNTIMES = str(Path(__file__).parents[1] / "runtimes")


@dataclass(frozen=True, slots=True)
class KeptEnvironment:
    """An environment of the broker's own: its folder, and the interpreter that it was made with."""

    folder: str
    interpreter: str


def prepare(
    policy: Policy,
    machine: Machine,
    runtime: str,
    interpreter: str,
    env: dict[str, str],
    *,
    slot: int = 0,
    folder: str | None = None,
    home: str | None = None,
    also: tuple[str, ...] = (),
    trusted: bool = True,
    kept: KeptEnvironment | None = None,
    grant: Grant = workspace.EVERYTHING,
) -> Plan:
    """How to confine an interpreter. Raises Unavailable, or workspace.Refused for a path that cannot be granted.

    `slot` tells sessions of a root broker apart: each number has a host user of its own. `folder` (a real path that
    `workspace.check` let through) is mounted at the start: only for machines where `Plan.late` is False. `also` are
    further paths that the runtime reads. `trusted`: the operator chose the interpreter. Else it may be a session's
    work: it does not run before the limits are set, and brings along what the session could have as a folder. `kept`
    where the broker keeps its environment. `grant` is the session's owner's.
    """
    home = home or os.path.expanduser("~")
    python = interpreter if runtime == "python" and trusted else os.path.realpath(sys.executable)
    asked: tuple[str, ...] = ()
    try:
        needs = reach.needs(*({interpreter, python} if trusted else {python}), more=(INNER, _RUNTIMES, *also))
        if not trusted:
            theirs = _named(policy, interpreter, kept, grant, home)
            asked = tuple(path for path in theirs.paths if not within(path, needs.paths)) if kept is None else ()
            needs = theirs.and_also(needs)
    except FileNotFoundError as error:
        raise Unavailable(f"{error.filename}: {error.strerror}", "name an interpreter that exists") from None
    except plain.Oversized as error:
        raise Unavailable(str(error), "name another environment") from None
    for path in (*policy.readable_paths, *policy.writable_paths):
        if not os.path.exists(path):
            raise Unavailable(f"{path}, which sessions are to have, does not exist", "make it, or correct the setting")
    granted = [
        mount
        for path in (*policy.readable_paths, *policy.writable_paths)
        for mount in workspace.mounts(policy, path, needs.kept, writable=path in policy.writable_paths)
    ]
    run_as = identity.uid_for(slot) if machine.uid == 0 else None
    return plans.plan(
        policy,
        machine,
        needs,
        runtime=runtime,
        python=python,
        inner=INNER,
        env=env,
        granted=granted,
        found=() if trusted else [(path, _identity(path)) for path in needs.paths],
        hidden=_hidden(policy, home, run_as, needs.paths),
        workspace=_at_start(policy, folder, needs.kept, grant),
        slot=slot,
        asked=asked,
        rights=grant.rights,
    )


def _named(policy: Policy, interpreter: str, kept: KeptEnvironment | None, grant: Grant, home: str) -> reach.Needs:
    """What an interpreter needs that the operator has not chosen: as its session's owner sees it, but for one that the
    broker keeps, which may build on the operator's alone. Raises Refused for what is none of the owner's business."""

    def may_read(path: str) -> bool:
        with acting_as(grant.rights):
            return _may_work_in(policy, path, grant.home or home, grant)

    with acting_as(grant.rights if kept is None else None):
        found = reach.needs(interpreter, may_read=may_read)
    if kept is None:
        own: tuple[str, ...] = (*policy.readable_paths, *policy.writable_paths)
        for path in found.paths:
            if not within(path, own):
                workspace.check_directories(grant, path, path)
    elif grant.is_restricted:
        own = (kept.folder, *reach.needs(kept.interpreter).paths)
        strange = [path for path in found.paths if not within(path, own) and not may_read(path)]
        if strange:
            raise workspace.Refused(f"{kept.folder} builds on {strange[0]}, which is not the broker's")
    return found


def _at_start(policy: Policy, folder: str | None, kept: tuple[str, ...], grant: Grant) -> list[workspace.Mount]:
    if folder is None:
        return []
    with acting_as(grant.rights):
        return workspace.mounts(policy, folder, kept)


def _identity(path: str) -> str:
    try:
        fd = mounts.open_strictly(path)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", "name an environment that nobody changes meanwhile") from None
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    return f"{status.st_dev}:{status.st_ino}"


def _may_work_in(policy: Policy, path: str, home: str, grant: Grant) -> bool:
    try:
        return workspace.check(policy, path, home, grant) == path
    except workspace.Refused:
        return False


def _hidden(policy: Policy, home: str, run_as: int | None, reached: tuple[str, ...]) -> list[workspace.Mount]:
    """What is there to be hidden of what is read, but for what the session's user cannot reach anyway."""
    if policy.read == "host":
        taboo, roots = (*plans.secrets(home), *policy.hidden_paths), ["/"]
    else:
        taboo, roots = tuple(policy.hidden_paths), list(reached)
    found = []
    for path in workspace.to_hide(map(os.path.realpath, taboo)):
        root = next((root for root in roots if within(path, [root])), None)
        if root is not None and (run_as is None or stage.closed(path, run_as, root) is None):
            found.append(workspace.hidden(path))
    return found

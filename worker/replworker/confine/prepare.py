"""The plan for a runtime on this machine: what `plan` needs from the disk, looked up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from replwire.policy import Policy, within
from replworker.confine import identity, mounts, plain, reach, stage, workspace
from replworker.confine import plan as plans
from replworker.confine.machine import Machine
from replworker.confine.plan import Plan, Unavailable

INNER = str(Path(__file__).with_name("inner.py"))
_RUNTIMES = str(Path(__file__).parents[1] / "runtimes")


def prepare(
    policy: Policy, machine: Machine, runtime: str, interpreter: str, env: dict[str, str], *, slot: int = 0,
    folder: str | None = None, home: str | None = None, also: tuple[str, ...] = (),
    trusted: bool = True,
) -> Plan:  # fmt: skip
    """How to confine an interpreter. Raises Unavailable, or workspace.Refused for a path that cannot be granted.

    `slot` tells sessions of a root broker apart: each number has a host user of its own. `folder` (a real path that
    `workspace.check` let through) is mounted at the start: only for machines where `Plan.late` is False. `also` are
    further paths that the runtime reads. `trusted`: the operator chose the interpreter. Else it may be a session's
    work: it does not run before the limits are set, and brings along what the session could have as a folder.
    """
    home = home or os.path.expanduser("~")
    python = interpreter if runtime == "python" and trusted else os.path.realpath(sys.executable)
    try:
        needs = reach.needs(
            interpreter, python, more=(INNER, _RUNTIMES, *also),
            may_read=lambda path: trusted or _may_work_in(policy, path, home),
        )  # fmt: skip
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
        policy, machine, needs, runtime=runtime, python=python, inner=INNER, env=env, granted=granted,
        found=() if trusted else [(path, _identity(path)) for path in needs.paths],
        hidden=_hidden(policy, home, run_as, needs.paths),
        workspace=workspace.mounts(policy, folder, needs.kept) if folder is not None else [], slot=slot,
    )  # fmt: skip


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


def _may_work_in(policy: Policy, path: str, home: str) -> bool:
    try:
        return workspace.check(policy, path, home) == path
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

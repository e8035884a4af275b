"""The plan for a runtime on this machine: what `plan` needs from the disk, looked up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from replwire.policy import Policy
from replworker.confine import identity, reach, stage, workspace
from replworker.confine import plan as plans
from replworker.confine.machine import Machine
from replworker.confine.plan import Plan, Unavailable

INNER = str(Path(__file__).with_name("inner.py"))
_RUNTIMES = str(Path(__file__).parents[1] / "runtimes")


def prepare(
    policy: Policy, machine: Machine, runtime: str, interpreter: str, env: dict[str, str], *, slot: int = 0,
    folder: str | None = None, home: str | None = None, also: tuple[str, ...] = (),
) -> Plan:  # fmt: skip
    """How to confine an interpreter. Raises Unavailable, or workspace.Refused for a path that cannot be granted.

    `slot` tells sessions of a root broker apart: each number has a host user of its own. `folder` (a real path that
    `workspace.check` let through) is mounted at the start: only for machines where `Plan.late` is False. `also` are
    further paths that the runtime reads.
    """
    home = home or os.path.expanduser("~")
    python = interpreter if runtime == "python" else os.path.realpath(sys.executable)
    try:
        needs = reach.needs(interpreter, python, more=(INNER, _RUNTIMES, *also))
    except FileNotFoundError as error:
        raise Unavailable(f"{error.filename}: {error.strerror}", "name an interpreter that exists") from None
    granted = [
        mount
        for path in (*policy.readable_paths, *policy.writable_paths)
        for mount in workspace.mounts(policy, path, needs.paths, writable=path in policy.writable_paths)
    ]
    run_as = identity.uid_for(slot) if machine.uid == 0 else None
    return plans.plan(
        policy, machine, needs, runtime=runtime, python=python, inner=INNER, env=env, granted=granted,
        hidden=_hidden(policy, home, run_as),
        workspace=workspace.mounts(policy, folder, needs.paths) if folder is not None else [], slot=slot,
    )  # fmt: skip


def _hidden(policy: Policy, home: str, run_as: int | None) -> list[workspace.Mount]:
    """With `read: host`: what is there to be hidden, but for what the session's user cannot reach anyway."""
    if policy.read != "host":
        return []
    paths = [path for path in (*plans.secrets(home), *policy.hidden_paths) if os.path.lexists(path)]
    if run_as is not None:
        paths = [path for path in paths if stage.closed(path, run_as) is None]
    return [workspace.hidden(path) for path in paths if not os.path.islink(path)]

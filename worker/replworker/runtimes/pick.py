"""A runtime by its name: the command that starts its interpreter."""

from __future__ import annotations

from pathlib import Path

from replworker.runtimes.bash import start as bash
from replworker.runtimes.child import CONTROL_FD, LATE_FD, PARCEL_FD, TRACE_FD, Command, Wrapping
from replworker.runtimes.node.command import command as node

_HARNESS = Path(__file__).with_name("python") / "harness.py"


def pick(runtime: str, interpreter: str, env: dict[str, str], wrapping: Wrapping | None = None) -> Command:
    """What to execute for a runtime. Raises KeyError for one that is not known."""
    if runtime == "bash":
        return bash.command(interpreter, env, wrapping)
    argv = {"python": _python, "node": _node}[runtime](interpreter)
    return Command(argv, env, wrapping)


def _python(interpreter: str) -> list[str]:
    fds = [str(fd) for fd in (CONTROL_FD, LATE_FD, TRACE_FD, PARCEL_FD)]
    return [interpreter, "-X", "utf8", str(_HARNESS), *fds]


def _node(interpreter: str) -> list[str]:
    return node(interpreter, CONTROL_FD, LATE_FD)

"""A runtime by its name: the command that starts its interpreter."""

from __future__ import annotations

from pathlib import Path

from replworker.runtimes.bash import start as bash
from replworker.runtimes.child import CONTROL_FD, LATE_FD, Command

_HARNESS = Path(__file__).with_name("python") / "harness.py"


def pick(runtime: str, interpreter: str, env: dict[str, str], prefix: tuple[str, ...] = ()) -> Command:
    """What to execute for a runtime. Raises KeyError for one that is not known."""
    if runtime == "bash":
        return bash.command(interpreter, env, prefix)
    argv = {"python": [interpreter, "-X", "utf8", str(_HARNESS), str(CONTROL_FD), str(LATE_FD)]}[runtime]
    return Command(argv, env, prefix)

"""A runtime by its name: the command that starts its interpreter."""

from __future__ import annotations

from pathlib import Path

from replworker.runtimes.child import CONTROL_FD, LATE_FD, Command
from replworker.runtimes.environments import NoEnvironment, find

__all__ = ["NoEnvironment", "pick"]

_HARNESS = Path(__file__).with_name("python") / "harness.py"


def pick(runtime: str, environment: str | None, interpreter: str, kept: str, env: dict[str, str]) -> Command:
    """What to execute for a runtime. `kept` is the folder of environments that have a name.

    Raises NoEnvironment, and KeyError for a runtime that is not known.
    """
    return {"python": _python}[runtime](environment, interpreter, kept, env)


def _python(environment: str | None, interpreter: str, kept: str, env: dict[str, str]) -> Command:
    found = find(environment, interpreter, kept, env)
    return Command([found.executable, "-X", "utf8", str(_HARNESS), str(CONTROL_FD), str(LATE_FD)], found.env)

"""Commands that start the interpreter of each runtime."""

from __future__ import annotations

from pathlib import Path

from replworker.runtimes.bash import command as bash
from replworker.runtimes.node.command import build_argv as node
from replworker.runtimes.process_start import (
    BACKGROUND_FD,
    CONTROL_FD,
    FD_SOCKET_FD,
    TRACE_FD,
    InterpreterCommand,
    SandboxWrapper,
)

_HARNESS = Path(__file__).with_name("python") / "harness.py"


def build_command(
    runtime: str, interpreter: str, env: dict[str, str], wrapper: SandboxWrapper | None = None
) -> InterpreterCommand:
    """Build the command for a runtime.

    Raises:
        KeyError: the runtime is unknown
    """
    if runtime == "bash":
        return bash.build_bash_command(interpreter, env, wrapper)
    argv = {"python": _python, "node": _node}[runtime](interpreter)
    return InterpreterCommand(argv, env, wrapper)


def _python(interpreter: str) -> list[str]:
    fds = [str(fd) for fd in (CONTROL_FD, BACKGROUND_FD, TRACE_FD, FD_SOCKET_FD)]
    return [interpreter, "-X", "utf8", str(_HARNESS), *fds]


def _node(interpreter: str) -> list[str]:
    return node(interpreter, CONTROL_FD, BACKGROUND_FD)

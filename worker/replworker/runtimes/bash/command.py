"""Command that starts a Bash session."""

from __future__ import annotations

import signal
from pathlib import Path

from replworker.runtimes.bash.codec import BashCodec
from replworker.runtimes.process_start import BACKGROUND_FD, CONTROL_FD, InterpreterCommand, SandboxWrapper

_DRIVER = Path(__file__).with_name("driver.sh")

# There is no terminal: pagers pass through, prompts fail at once. The user's environment takes precedence.
QUIET = {
    "PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_PAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS_REQUIRE": "never",
    "DEBIAN_FRONTEND": "noninteractive",
}


def build_bash_command(
    interpreter: str, env: dict[str, str], wrapper: SandboxWrapper | None = None
) -> InterpreterCommand:
    """Build the command of a session with this Bash, 4.4 or newer."""
    argv = [interpreter, "--norc", "--noprofile", "-p", str(_DRIVER), str(CONTROL_FD), str(BACKGROUND_FD)]
    return InterpreterCommand(argv, {**QUIET, **env, "TERM": "dumb"}, wrapper, BashCodec, signal.SIGURG)

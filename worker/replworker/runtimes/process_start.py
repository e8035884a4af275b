"""Start of an interpreter: its command, its sandbox wrapper, and the step from fork to exec."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from replworker.runtimes.codec import Codec, JsonFrames

CONTROL_FD = 3
BACKGROUND_FD = 4
TRACE_FD = 5
FD_SOCKET_FD = 6
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = 500  # the OOM killer takes the interpreter before its worker, and that before the broker
_libc = ctypes.CDLL(None, use_errno=True)


class SandboxWrapper(Protocol):
    """A sandbox wrapper around an interpreter, from before its start to after its end."""

    prefix: tuple[str, ...]  # put before the command; the first is an absolute path
    fds: tuple[int, ...]  # inherited as 7, 8, ...
    has_holder: bool  # lasts longer than the interpreter

    def enter(self) -> None:
        """Prepare the forked child just before the command is executed.

        Raises:
            OSError: the preparation failed
        """

    def on_fork(self, pid: int) -> None:
        """Continue in the worker after the fork."""

    def death_cause(self) -> str | None:
        """Return why the interpreter was killed, if the wrapper knows."""


@dataclass(frozen=True, slots=True)
class InterpreterCommand:
    """Command that starts an interpreter. `env` is the whole environment.

    `codec` creates the interpreter's side of the control channel; it may read bytes that have come through the pipe for
    stacks. With `extra_signal`, an interrupt goes to the whole
    process group, and this signal to the interpreter in addition.
    """

    argv: list[str]
    env: dict[str, str]
    wrapper: SandboxWrapper | None = None
    codec: Callable[[Callable[[], bytes]], Codec] = JsonFrames
    extra_signal: signal.Signals | None = None


def raise_oom_score(least: int) -> None:
    """Raise this process's OOM score to at least `least`. Everybody may raise it; it is never lowered.

    Raises:
        OSError: /proc cannot be written
    """
    with open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < least:
            file.seek(0)
            file.write(str(least))


def exec_child(command: InterpreterCommand, inner: list[int]) -> NoReturn:
    """Arrange descriptors and execute the command, in the forked child."""
    doing = command.argv[0]
    try:
        parent = os.getppid()
        os.setsid()
        raise_oom_score(_OOM_SCORE)
        wrapper = command.wrapper
        wanted = [*inner, *(wrapper.fds if wrapper else ())]
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in wanted]
        for target, fd in enumerate(high):
            os.dup2(fd, target)
        os.closerange(len(wanted), os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        argv = [*(wrapper.prefix if wrapper else ()), *command.argv]
        if wrapper:
            doing = "the sandbox"
            wrapper.enter()
            doing = argv[0]
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which clears it
        if os.getppid() != parent:
            os._exit(127)
        os.execve(argv[0], argv, command.env)
    except OSError as error:
        named = f" {error.filename}:" if error.filename not in (None, doing) else ""
        os.write(2, f"{doing}:{named} {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(127)

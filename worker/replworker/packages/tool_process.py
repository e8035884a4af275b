"""Process of a package tool: started by a worker, outside its session, with its output in one pipe."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from replworker.runtimes.process_start import InterpreterCommand, exec_child

_INNER_FDS = 7  # descriptors before those of a sandbox, as an interpreter has them
_READ_BYTES = 64 * 1024


class ToolProcess:
    """A package tool and its sandbox. All descriptors are non-blocking and no method waits, except `close`."""

    def __init__(self, command: InterpreterCommand) -> None:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.output, theirs = os.pipe2(os.O_CLOEXEC)
        self._wrapper = command.wrapper
        mask = os.umask(0o022)  # of installed files: a root broker's sessions are other users
        self._pid = os.fork()
        if self._pid == 0:
            exec_child(command, [nothing, theirs, theirs, *[nothing] * (_INNER_FDS - 3)])
        os.umask(mask)
        os.close(nothing)
        os.close(theirs)
        self.pidfd = os.pidfd_open(self._pid)
        os.set_blocking(self.output, False)
        if self._wrapper is not None:
            self._wrapper.on_fork(self._pid)

    def read(self) -> bytes | None:
        """Return output; b"" at its end, None if nothing is available."""
        try:
            return os.read(self.output, _READ_BYTES)
        except BlockingIOError:
            return None

    def kill(self) -> None:
        """Kill the tool with everything in its sandbox (SIGKILL)."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> int:
        """Reap the tool, which has ended, and return its exit code; negative for a signal."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self.pidfd)
        os.close(self.output)
        return os.waitstatus_to_exitcode(status)

"""Process of a package tool: started by a worker, outside its session, with its output in one pipe."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace

from replworker.runtimes.process_start import InterpreterCommand, exec_child

_INNER_FDS = 7  # descriptors before those of a sandbox, as an interpreter has them
_READ_BYTES = 64 * 1024
_WAIT = 'echo; read -r line && exec "$@" </dev/null'


class ToolProcess:
    """A package tool and its sandbox. All descriptors are non-blocking and no method waits, except `close`.

    With `waits`, the tool writes an empty line when its sandbox is complete, and begins after `release`.
    """

    def __init__(self, command: InterpreterCommand, *, waits: bool) -> None:
        self.is_waiting = waits
        self._adopted: list[int] = []
        if waits:
            command = replace(command, argv=["/bin/sh", "-c", _WAIT, "sh", *command.argv])
        stdin, self._release = os.pipe2(os.O_CLOEXEC)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.output, theirs = os.pipe2(os.O_CLOEXEC)
        self._wrapper = command.wrapper
        mask = os.umask(0o022)  # of installed files: a root broker's sessions are other users
        self._pid = os.fork()
        if self._pid == 0:
            exec_child(command, [stdin, theirs, theirs, *[nothing] * (_INNER_FDS - 3)])
        os.umask(mask)
        os.close(nothing)
        os.close(stdin)
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

    def release(self) -> None:
        """Let a waiting tool begin."""
        self.is_waiting = False
        with suppress(OSError), open(f"/proc/{self._pid}/task/{self._pid}/children", "rb") as file:
            self._adopted = [int(pid) for pid in file.read().split()]
        with suppress(BrokenPipeError):
            os.write(self._release, b"\n")

    def kill(self) -> None:
        """Kill the tool with everything in its sandbox (SIGKILL)."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> int:
        """Reap the tool, which has ended, and return its exit code; negative for a signal."""
        _, status = os.waitpid(self._pid, 0)
        for pid in self._adopted:  # bwrap does not wait for its first process, and a worker inherits orphans
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os.close(self.pidfd)
        os.close(self.output)
        os.close(self._release)
        return os.waitstatus_to_exitcode(status)

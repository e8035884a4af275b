"""The process around an interpreter: its sandbox's wrapper, or the interpreter itself. A sandbox may have several."""

from __future__ import annotations

import os
import select
import signal


class OuterProcess:
    """A child of the worker, from the fork to its end. Its exit status is read once and kept."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self._status: int | None = None

    @property
    def has_ended(self) -> bool:
        """True if it has ended."""
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def wait(self) -> int:
        """Reap it and return its wait status. Only after its end, else this would wait for that."""
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        return self._status

    def kill(self) -> None:
        """Kill it (SIGKILL).

        Raises:
            ProcessLookupError: it has ended
        """
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close its descriptor, after it was reaped."""
        os.close(self.pidfd)

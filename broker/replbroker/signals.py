"""Signals of the broker's process, delivered to its event loop."""

from __future__ import annotations

import os
import signal


class Signals:
    """Signals as bytes on a descriptor.

    Attributes:
        fd: Readable once signals have arrived.
        from_terminal: Whether SIGHUP means the loss of a terminal; else it is a request to reload.
    """

    HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

    def __init__(self) -> None:
        self.from_terminal = os.isatty(0)
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in self.HANDLED}

    def take(self) -> set[int]:
        """Return the numbers of the signals since the last call."""
        try:
            return set(os.read(self.fd, 4096))
        except BlockingIOError:
            return set()

    def close(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._write)

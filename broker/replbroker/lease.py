"""Standard input as a lease: its end is the end of the program that started the broker."""

from __future__ import annotations

import os
from collections.abc import Callable

from replbroker.endpoints import StartError
from replbroker.loop_parts import Register, Unregister

_CHUNK_BYTES = 4096


class StdinLease:
    """Source that reports the end of a descriptor once; what is written there is read and dropped.

    Args:
        fd: A pipe, socket or terminal.
        on_end: Called when it has ended.
    """

    def __init__(self, fd: int, on_end: Callable[[], None]) -> None:
        self._fd = fd
        self._on_end = on_end

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:
        """Poll the descriptor.

        Raises:
            StartError: It cannot be polled, as a file or /dev/null.
        """
        self._unregister = unregister
        try:
            register(self._fd, self._read)
        except OSError as error:
            raise StartError(f"--end-with-stdin: standard input is not a pipe ({error.strerror})") from None

    def _read(self) -> None:
        try:
            if os.read(self._fd, _CHUNK_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:  # a terminal that hung up
            pass
        self._unregister(self._fd)
        self._on_end()

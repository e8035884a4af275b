"""Descriptors that come and go while a worker runs, such as those of an installer, behind one that stays."""

from __future__ import annotations

import select
from collections.abc import Callable


class DescriptorWatch:
    """A set of descriptors with a handler each. Its own descriptor is readable when one of them is."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}

    def fileno(self) -> int:
        """Return the descriptor for an outer loop."""
        return self._epoll.fileno()

    def add(self, fd: int, handler: Callable[[], None]) -> None:
        """Call the handler whenever this descriptor is readable, until it is removed."""
        self._epoll.register(fd, select.EPOLLIN)
        self._handlers[fd] = handler

    def remove(self, fd: int) -> None:
        """Stop watching a descriptor, which is still open."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def handle_ready(self) -> None:
        """Call the handlers of readable descriptors."""
        for fd, _ in self._epoll.poll(0):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()

    def close(self) -> None:
        """Stop watching. The watched descriptors belong to others."""
        self._epoll.close()

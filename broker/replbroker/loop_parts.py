"""Interfaces between the event loop and the parts that it drives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Register = Callable[[int, Callable[[], None]], None]
Unregister = Callable[[int], None]


class DescriptorSource(Protocol):
    """Part with file descriptors for the loop to poll."""

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:
        """Register descriptors with the loop.

        Args:
            register: Called as `register(fd, on_readable)`.
            unregister: Stops polling a descriptor; to be called before the descriptor is closed.
        """


class TimedPart(Protocol):
    """Part with work that comes due at a moment."""

    @property
    def due(self) -> float | None:
        """Monotonic time at which `flush` should be called, None while nothing waits."""

    def flush(self, now: float) -> None:
        """Do what is due. Called on every turn of the loop, so it has to return at once when nothing is."""


class Closable(Protocol):
    """Part that releases its resources at the broker's end."""

    def close(self) -> None:
        """Release everything, within a few seconds."""

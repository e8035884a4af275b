"""Puts the parts together."""

from __future__ import annotations

import os
import sys

from .channel import Channel
from .gate import Gate
from .interrupts import Interrupts
from .loop import Loop
from .run import Runner
from .sources import Sources
from .streams import Streams


def compose(control_fd: int, late_fd: int) -> Loop:
    """A harness on these two descriptors, with the user's `__main__`, streams and SIGINT in place."""
    os.environ.setdefault("MPLBACKEND", "agg")  # matplotlib looks for a display before it falls back to it
    interrupts = Interrupts()
    channel = Channel(control_fd)
    gate = Gate(late_fd)
    streams = Streams(gate, channel)
    started_as = sys.modules["__main__"]
    sys.argv[:] = [""]
    runner = Runner(channel, gate, streams, interrupts, Sources())

    def in_child() -> None:
        channel.forget()
        gate.after_fork()

    os.register_at_fork(after_in_child=in_child)
    return Loop(channel, runner, interrupts, started_as)

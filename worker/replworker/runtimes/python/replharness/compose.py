"""Puts the parts together."""

from __future__ import annotations

import os
import sys

from .asks import Asks
from .channel import Channel
from .gate import Gate
from .interrupts import Interrupts
from .late import Late
from .loop import Loop
from .run import Runner
from .sources import Sources
from .stack import tell_on_signal
from .streams import Streams


def compose(control_fd: int, late_fd: int, trace_fd: int, parcel_fd: int) -> Loop:
    """A harness on these descriptors, with the user's `__main__`, streams, SIGINT and SIGUSR1 in place."""
    os.environ.setdefault("MPLBACKEND", "agg")  # matplotlib looks for a display before it falls back to it
    late = Late()  # first: what is imported now is what its modules may import
    interrupts = Interrupts()
    channel = Channel(control_fd)
    gate = Gate(late_fd)
    streams = Streams(gate, channel)
    started_as = sys.modules["__main__"]
    sys.argv[:] = [""]
    runner = Runner(channel, gate, streams, interrupts, Sources(), late)
    os.set_inheritable(parcel_fd, False)
    asks = Asks(runner.module, channel, interrupts, late, parcel_fd)

    def in_child() -> None:
        channel.forget()
        gate.after_fork()

    os.register_at_fork(after_in_child=in_child)
    return Loop(channel, runner, interrupts, asks, tell_on_signal(trace_fd), started_as)

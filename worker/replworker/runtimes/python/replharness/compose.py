"""Composition root of the harness."""

from __future__ import annotations

import os
import sys

from .channel import Channel
from .eval_scope import EvalScope
from .interrupts import Interrupts
from .lazy_import import LazyImporter
from .loop import HarnessLoop
from .queries import QueryHandlers
from .run import Runner
from .sources import Sources
from .stack import dump_stacks_on_signal
from .streams import UserStreams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List


def build_harness(control_fd: int, late_fd: int, trace_fd: int, transfer_fd: int) -> HarnessLoop:
    """Build a harness on these descriptors, with the user's `__main__`, streams, SIGINT and SIGUSR1 set up."""
    os.environ.setdefault("MPLBACKEND", "agg")  # otherwise matplotlib looks for a display first
    late = LazyImporter()  # first: lazily loaded modules may import what is loaded now
    interrupts = Interrupts()
    channel = Channel(control_fd)
    scope = EvalScope(late_fd)
    streams = UserStreams(scope, channel)
    started_as = sys.modules["__main__"]
    sys.argv[:] = [""]
    runner = Runner(channel, scope, streams, interrupts, Sources(), late)
    os.set_inheritable(transfer_fd, False)
    asks = QueryHandlers(runner.module, channel, interrupts, late, transfer_fd)

    def in_child() -> None:
        channel.forget()
        scope.after_fork()

    def revive() -> None:
        channel.revive(control_fd)
        scope.revive()
        runner.revive()

    def take_checkpoint(message: Dict[str, Any]) -> Any:
        if not checkpointers:
            own_fds = (control_fd, late_fd, trace_fd, transfer_fd)
            checkpointers.append(late.load("checkpoint").Checkpointer(channel, own_fds, runner, revive))
        return checkpointers[0].take(message)

    checkpointers: List[Any] = []  # loaded with the first checkpoint
    os.register_at_fork(after_in_child=in_child)
    stack = dump_stacks_on_signal(trace_fd)
    return HarnessLoop(channel, runner, interrupts, asks, stack, started_as, take_checkpoint)

"""Loop of a worker process: one session, and the branches that share its sandbox."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import zmq

from replwire.link import BranchBody
from replworker.loop import WorkerLoop

_POLLIN = int(zmq.POLLIN)


class ProcessLoop:
    """Runs until the broker kills this process, which is the normal end.

    If the broker disconnects, each session goes on and looks for the next broker at the endpoint. One that no broker
    adopts in time ends; the process ends with the last.

    Each session has a connection, timers and descriptors of its own. `start_branch` makes the loop of a session that
    begins with a checkpoint of another.
    """

    def __init__(self, first: WorkerLoop, start_branch: Callable[[WorkerLoop, BranchBody], WorkerLoop]) -> None:
        self._loops = [first]
        self._start_branch = start_branch

    def run(self) -> None:
        """Serve until the broker has gone, and no other has come in time."""
        self._loops[0].start()
        if self._loops[0].link.is_disconnected():  # before its descriptor was watched
            return
        while True:
            self._serve()
            if all(loop.has_left for loop in self._loops):
                return  # the end of the process ends them, faster than one by one
            self._update_loops()

    def _serve(self) -> None:
        """Serve the present sessions until one begins or ends, or has another connection."""
        loops = self._loops
        sockets = [loop.link.socket for loop in loops]
        # libzmq's poll also reports frames received while sending; all else is in the epoll.
        items: Any = [(place, _POLLIN) for loop in loops for place in (loop.link.socket, loop.fileno())]
        by_socket = {id(loop.link.socket): loop for loop in loops}
        by_fd = {loop.fileno(): loop for loop in loops}
        while True:
            for ready, _ in zmq.zmq_poll(items, self._timeout_ms()):
                if (loop := by_socket.get(id(ready))) is not None:
                    loop.handle_link()
                else:
                    by_fd[ready].handle_descriptors()
            for loop in loops:
                loop.after_poll()
            if any(loop.new_branches or loop.has_left for loop in loops):
                return
            if [loop.link.socket for loop in loops] != sockets:
                return

    def _update_loops(self) -> None:
        for loop in list(self._loops):
            for body in loop.new_branches:
                started = self._start_branch(loop, body)
                started.start()
                started.has_left = started.link.is_disconnected()  # before its descriptor was watched
                self._loops.append(started)
            loop.new_branches.clear()
        for loop in [loop for loop in self._loops if loop.has_left]:
            self._loops.remove(loop)
            loop.leave()

    def _timeout_ms(self) -> int:
        due = min((at for loop in self._loops if (at := loop.next_due()) is not None), default=None)
        return -1 if due is None else max(0, math.ceil(1000 * (due - time.monotonic())))

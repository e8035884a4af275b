"""The worker's one loop: the broker's link, the interpreter's channel and pipes, and timers, on one epoll."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from replwire.deadlines import Deadline, Deadlines
from replwire.link import unpack
from replworker.interpreter import InterpreterBroken
from replworker.link import Link
from replworker.memory import MemoryWatch
from replworker.output import Stream
from replworker.runtimes.child import Child, ProtocolError
from replworker.session import Session

_SHARE = 1024 * 1024  # bytes of one pipe read in one turn, so that a flood leaves room for control
_SMALL = 32 * 1024  # a read below this leaves the pipe alone for a moment, to find more there next time:
_REST_S = 0.002  # a loop of prints costs hundreds of messages a second and not hundreds of thousands
_IDLE_SHARE = 4 * 1024 * 1024  # bytes a second that are read, and mostly forgotten, while no eval runs
_IDLE_PAUSE_S = 0.1
_POLLIN = int(zmq.POLLIN)
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class Loop:
    """Runs until the broker is gone, or kills this worker, which is the normal end."""

    def __init__(
        self, link: Link, child: Child, session: Session, timers: Deadlines, beat_s: float, memory: MemoryWatch
    ) -> None:
        self._link = link
        self._child = child
        self._session = session
        self._timers = timers
        self._beat_s = beat_s
        self._memory = memory
        self._memory_look: Deadline | None = None
        self._epoll = select.epoll()
        self._watched: dict[int, int] = {}
        self._paused = False
        self._resting: set[int] = set()
        self._dead = False
        self._handlers: dict[int, Callable[[], None]] = {
            child.control.fileno(): self._control,
            child.out: lambda: self._stream("out"),
            child.err: lambda: self._stream("err"),
            child.late: self._late,
            child.pidfd: self._child_died,
            child.stdin: lambda: session.input.flush(),  # a claim gives the session another Input
        }
        self._epoll.register(link.monitor_fd, _IN)
        for fd in (child.control.fileno(), child.out, child.err, child.late, child.pidfd):
            self._watch(fd, _IN)

    def _watch(self, fd: int, events: int) -> None:
        """Register, change or drop a descriptor; a no-op when nothing changes."""
        if self._watched.get(fd, 0) == events:
            return
        if not events:
            self._epoll.unregister(fd)
        elif fd in self._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._watched[fd] = events
        if not events:
            del self._watched[fd]

    def fileno(self) -> int:
        """Readable when `others` has something to do: for a loop around this one."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Watch nothing any more. What is watched belongs to others."""
        self._epoll.close()

    def run(self) -> None:
        """Serve. Returns when the broker's connection is gone."""
        self.begin()
        link = self._link
        if link.broken():  # before its descriptor was watched
            return
        # libzmq's own poll knows of frames that it took in while sending; the rest stands behind the epoll.
        items: Any = [(link.socket, _POLLIN), (self.fileno(), _POLLIN)]
        while True:
            for ready, _ in zmq.zmq_poll(items, self._timeout_ms()):
                if ready is link.socket:
                    self.hear()
                elif not self.others():
                    return
            self.settle()

    def begin(self) -> None:
        """Say that this worker lives, and watch what is to be watched."""
        self._look_at_memory(time.monotonic())
        self._beat(time.monotonic())
        self._arrange()

    def hear(self) -> None:
        """Take one frame from the link."""
        frame = self._link.receive()
        if frame is None:
            return
        try:
            self._session.hear(unpack(frame), frame)
        except InterpreterBroken as broken:
            self._die(str(broken))
            return
        if self._memory.rests and self._session.jobs.running is not None:
            self._timers.cancel(self._memory_look)
            self._memory_look = self._timers.at(time.monotonic() + self._memory.wake(), self._look_at_memory)

    def others(self) -> bool:
        """Handle everything but the link's frames; False when the broker is gone."""
        for fd, _ in self._epoll.poll(0):
            if fd == self._link.monitor_fd and self._link.broken():
                return False
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()
        return True

    def settle(self) -> None:
        """After each turn: do what is due, and watch what is to be watched from here on."""
        self._timers.run_due(time.monotonic())
        self._arrange()

    def _timeout_ms(self) -> int:
        due = self._timers.next()
        return -1 if due is None else max(0, math.ceil(1000 * (due - time.monotonic())))

    def _arrange(self) -> None:
        """Read pipes only while the broker takes what they give; write only where there is something to write."""
        child, link = self._child, self._link
        if link.stuffed:
            link.flush()
        if self._dead:
            return
        blocked = link.stuffed or self._paused
        for fd in (child.out, child.err, child.late):
            if fd in self._handlers:
                self._watch(fd, 0 if blocked or fd in self._resting else _IN)
        if child.unsent or child.control.fileno() in self._watched:
            self._watch(child.control.fileno(), _IN | _OUT if child.unsent else _IN)
        if self._session.input.pending or child.stdin in self._watched:
            self._watch(child.stdin, _OUT if self._session.input.pending else 0)

    def _beat(self, now: float) -> None:
        self._session.beat()
        self._timers.at(now + self._beat_s, self._beat)

    def _look_at_memory(self, _: float) -> None:
        if self._dead:
            return
        look = self._memory.look(time.monotonic)
        if look.cause is not None:
            self._die(look.cause)
            return
        if look.changed:
            self._session.beat()
        self._memory_look = self._timers.at(time.monotonic() + look.pause_s, self._look_at_memory)

    def _control(self) -> None:
        self._child.flush()
        try:
            for body in self._child.receive():
                self._session.interpreter_said(body)
        except InterpreterBroken as broken:
            self._die(str(broken))
        except (ProtocolError, ValueError, msgspec.MsgspecError) as error:
            self._die(f"protocol: the interpreter {error}")

    def _stream(self, stream: Stream) -> None:
        fd = self._child.out if stream == "out" else self._child.err
        most = self._share(fd)
        if not self._session.printed(stream, most):
            self._stop_reading(fd)
        elif most < _SMALL:
            self._resting.add(fd)
            self._timers.at(time.monotonic() + _REST_S, lambda _: self._resting.discard(fd))

    def _late(self) -> None:
        if not self._session.late(self._share(self._child.late)):
            self._stop_reading(self._child.late)

    def _share(self, fd: int) -> int:
        """How much to read now: what is there, within bounds; while nothing runs, not all the time."""
        most = min(_SHARE, max(1, self._child.waiting(fd)))
        if self._session.jobs.running is None and most > _IDLE_SHARE * _IDLE_PAUSE_S:
            self._paused = True
            self._timers.at(time.monotonic() + _IDLE_PAUSE_S, lambda _: self._resume())
        return most

    def _resume(self) -> None:
        self._paused = False

    def _stop_reading(self, fd: int) -> None:
        self._watch(fd, 0)
        del self._handlers[fd]

    def _child_died(self) -> None:
        cause = self._child.died()
        if cause is not None:
            self._die(cause)

    def _die(self, cause: str) -> None:
        """The session is over: say what it still had to say, then how it ended, and wait to be killed."""
        if self._dead:
            return
        self._dead = True
        self._child.kill()
        self._session.drain()
        self._session.gone(cause)
        for fd in list(self._watched):
            self._watch(fd, 0)

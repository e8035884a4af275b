"""Event loop of the worker: broker link, interpreter channel and pipes, and timers, on one epoll."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

import msgspec

from replwire.deadlines import Deadline, Deadlines
from replwire.link import HEADER_BYTES, BranchBody, FrameKind, unpack
from replworker.interpreter import InterpreterBroken
from replworker.link import BrokerLink
from replworker.memory import MemoryWatch
from replworker.output import Stream
from replworker.reconnection import Reconnection
from replworker.runtimes.interpreter_process import InterpreterProcess, ProtocolError
from replworker.session import WorkerSession

_READ_BUDGET = 1024 * 1024  # bytes read from a pipe per turn, so floods do not delay control frames
_SMALL_READ = 32 * 1024  # after a read below this, wait _COALESCE_S so output coalesces:
_COALESCE_S = 0.002  # a loop of prints sends hundreds of messages per second, not hundreds of thousands
_IDLE_BYTES_PER_S = 4 * 1024 * 1024  # read, and mostly discarded, while no eval runs
_IDLE_PAUSE_S = 0.1
_EXIT_S = 2.0  # from the end of the control channel to that of the interpreter, which may have to free much memory
_FAMILY_SAMPLE_S = 0.25  # the largest of a family is ended, even if another grows
_decode_branch = msgspec.json.Decoder(BranchBody).decode
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class WorkerLoop:
    """Serves one session, in the loop of its process: see `ProcessLoop`.

    `new_branches` are sessions that the process is to serve besides; `has_left` is set when this one is over.
    """

    def __init__(
        self,
        link: BrokerLink,
        process: InterpreterProcess,
        session: WorkerSession,
        timers: Deadlines,
        beat_s: float,
        memory: MemoryWatch,
        reconnection: Reconnection,
    ) -> None:
        self._reconnection = reconnection
        self._link, self._process, self._session = link, process, session
        self._family = session.settings.family
        self._streams = session.streams
        self._timers = timers
        self._heartbeat_s = beat_s
        self._memory = memory
        self._memory_timer: Deadline | None = None
        self._epoll = select.epoll()
        self._watched: dict[int, int] = {}
        self.new_branches: list[BranchBody] = []
        self.has_left = False
        self._is_paused = False
        self._coalescing: set[int] = set()
        self._exited = False
        self._handlers: dict[int, Callable[[], None]] = {
            process.exit_fd: self._on_exit,
            session.copies_fd: session.read_copies,
            session.watch.fileno(): session.watch.handle_ready,
        }
        if (network := session.network) is not None:
            self._handlers[network.fileno()] = network.poll
        self._epoll.register(reconnection.fileno(), _IN)
        for fd in list(self._handlers):
            self._watch(fd, _IN)
        self._watch_endpoints()

    def _watch_endpoints(self) -> None:
        process = self._process
        self._handlers |= {
            process.control.fileno(): self._on_control,
            process.out: lambda: self._on_stream("out"),
            process.err: lambda: self._on_stream("err"),
            process.background: self._on_background,
            process.stdin: lambda: self._streams.stdin.flush(),  # an assignment replaces the session's StdinBuffer
        }
        for fd in (process.control.fileno(), process.out, process.err, process.background):
            self._watch(fd, _IN)

    def _replace_endpoints(self) -> None:
        """Watch the interpreter that has taken the place of another, and close what is left of that."""
        for ends in self._process.retired:
            for fd in ends.fds:
                self._watch(fd, 0)
                self._handlers.pop(fd, None)
                self._coalescing.discard(fd)
            ends.close()
        self._process.retired.clear()
        self._watch_endpoints()

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
        """Return a descriptor that is readable when `handle_descriptors` has work, for an outer loop."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Close the epoll, and end copies of the interpreter. The watched descriptors belong to others."""
        self._epoll.close()
        self._reconnection.close()
        self._session.close()

    def leave(self) -> None:
        """End the session; its process goes on with others."""
        self._epoll.close()
        self._reconnection.close()
        self._session.leave()
        self._link.close()

    @property
    def link(self) -> BrokerLink:
        """The session's own connection to the broker."""
        return self._link

    @property
    def session(self) -> WorkerSession:
        """The session that is served."""
        return self._session

    def start(self) -> None:
        """Send the first heartbeat and start watching descriptors."""
        self._sample_memory(time.monotonic())
        self._heartbeat(time.monotonic())
        self._update_interest()

    def handle_link(self) -> None:
        """Handle one frame of the link."""
        frame = self._link.receive()
        if frame is None:
            return
        header = unpack(frame)
        if header.kind == FrameKind.BRANCH:
            self.new_branches.append(_decode_branch(frame[HEADER_BYTES:]))
            return
        if header.kind == FrameKind.LEAVE:
            self.has_left = True
            return
        try:
            self._session.handle_frame(header, frame)
        except InterpreterBroken as broken:
            self._interpreter_exited(str(broken))
            return
        self._reconnection.on_frame()
        if self._memory.is_idle and self._streams.evals.running is not None:
            self._timers.cancel(self._memory_timer)
            self._memory_timer = self._timers.call_at(
                time.monotonic() + self._memory.on_eval_start(), self._sample_memory
            )

    def handle_descriptors(self) -> None:
        """Handle everything but the link's frames."""
        for fd, _ in self._epoll.poll(0):
            if fd == self._reconnection.fileno() and not self._reconnection.handle_ready():
                self.has_left = True
                return
            handler = self._handlers.get(fd)
            if handler is not None:
                handler()

    def after_poll(self) -> None:
        """Run due timers and update the watched events, after each poll."""
        try:
            self._timers.run_due(time.monotonic())
        except InterpreterBroken as broken:
            self._interpreter_exited(str(broken))
        self.has_left |= self._reconnection.is_over
        if self._process.retired:
            self._replace_endpoints()
        self._update_interest()

    def next_due(self) -> float | None:
        """Return the time at which `after_poll` has to be called, or None."""
        return self._timers.next_due()

    def _update_interest(self) -> None:
        """Read pipes only while the broker keeps up; write only where data is pending."""
        process, link = self._process, self._link
        if link.is_backpressured:
            link.flush()
        if self._exited:
            return
        blocked = link.is_backpressured or self._is_paused
        for fd in (process.out, process.err, process.background):
            if fd in self._handlers:
                self._watch(fd, 0 if blocked or fd in self._coalescing else _IN)
        if process.has_unsent or process.control.fileno() in self._watched:
            self._watch(process.control.fileno(), _IN | _OUT if process.has_unsent else _IN)
        if self._streams.stdin.has_pending or process.stdin in self._watched:
            self._watch(process.stdin, _OUT if self._streams.stdin.has_pending else 0)

    def _heartbeat(self, now: float) -> None:
        self._session.send_heartbeat()
        self._timers.call_at(now + self._heartbeat_s, self._heartbeat)

    def _sample_memory(self, _: float) -> None:
        if self._exited:
            return
        look = self._memory.sample(time.monotonic)
        if look.cause is not None and self._family.may_end(self._session.member, now := time.monotonic()):
            self._family.note_end(now)
            self._interpreter_exited(look.cause)
            if self._exited:
                return
        self._session.limit_checkpoints(look.used)
        if look.changed:
            self._session.send_heartbeat()
        pause = min(look.pause_s, _FAMILY_SAMPLE_S) if self._family.is_shared else look.pause_s
        self._memory_timer = self._timers.call_at(time.monotonic() + pause, self._sample_memory)

    def _on_control(self) -> None:
        self._process.flush()
        try:
            for body in self._process.receive():
                self._session.handle_interpreter_frame(body)
        except InterpreterBroken as broken:
            self._interpreter_exited(str(broken))
        except (ProtocolError, ValueError, msgspec.MsgspecError) as error:
            self._interpreter_exited(f"protocol: the interpreter {error}")
        else:
            if self._process.has_closed_control and not self._process.retired:
                self._on_control_closed()

    def _on_control_closed(self) -> None:
        """Wait for the interpreter's exit, which has a better cause, but not for long."""
        control = self._process.control
        self._watch(control.fileno(), 0)
        del self._handlers[control.fileno()]

        def give_up(_: float) -> None:
            if self._process.control is control and not self._exited:
                self._interpreter_exited("the interpreter closed its control channel")

        self._timers.call_at(time.monotonic() + (0.0 if self._session.is_starting else _EXIT_S), give_up)

    def _on_stream(self, stream: Stream) -> None:
        fd = self._process.out if stream == "out" else self._process.err
        most = self._read_budget(fd)
        if not self._streams.read_stream(stream, most):
            self._stop_reading(fd)
        elif most < _SMALL_READ:
            self._coalescing.add(fd)
            self._timers.call_at(time.monotonic() + _COALESCE_S, lambda _: self._coalescing.discard(fd))

    def _on_background(self) -> None:
        if not self._streams.read_background(self._read_budget(self._process.background)):
            self._stop_reading(self._process.background)

    def _read_budget(self, fd: int) -> int:
        """Return how many bytes to read now: those available, within limits that are lower while no eval runs."""
        most = min(_READ_BUDGET, max(1, self._process.unread_bytes(fd)))
        if self._streams.evals.running is None and most > _IDLE_BYTES_PER_S * _IDLE_PAUSE_S:
            self._is_paused = True
            self._timers.call_at(time.monotonic() + _IDLE_PAUSE_S, lambda _: self._resume())
        return most

    def _resume(self) -> None:
        self._is_paused = False

    def _stop_reading(self, fd: int) -> None:
        self._watch(fd, 0)
        del self._handlers[fd]

    def _on_exit(self) -> None:
        cause = self._process.poll_exit()
        if cause is not None:
            self._interpreter_exited(cause)

    def _interpreter_exited(self, cause: str) -> None:
        """Go on from a checkpoint, or end the session: send the rest and the cause of death, and wait to be killed."""
        if self._exited or self._session.recover(cause):
            return
        self._exited = True
        self._family.end_interpreter(self._session.member)
        self._streams.drain()
        self._session.send_exited(cause)
        for fd in list(self._watched):
            self._watch(fd, 0)

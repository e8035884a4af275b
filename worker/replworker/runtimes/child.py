"""The interpreter as a child process: how it is started, spoken to, signalled and buried.

It gets three pipes as its standard streams and two more descriptors: 3 is the control channel (one end of a
socketpair), 4 a pipe for output that belongs to no eval. Nothing else is inherited. It dies with the worker.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from replworker.runtimes.codec import Codec, JsonFrames
from replworker.runtimes.codec import ProtocolError as ProtocolError

CONTROL_FD = 3
LATE_FD = 4
_PIPE_BYTES = 1024 * 1024
_READ_BYTES = 128 * 1024
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"  # when memory runs out the interpreter goes before its worker and the broker
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Command:
    """What to execute. `prefix` (a sandbox) comes before `argv`; `env` is the whole environment.

    `codec` makes the interpreter's side of the control channel. With `nudge`, an interrupt goes to the whole process
    group, and this signal to the interpreter besides.
    """

    argv: list[str]
    env: dict[str, str]
    prefix: tuple[str, ...] = ()
    codec: Callable[[], Codec] = JsonFrames
    nudge: signal.Signals | None = None


class Child:
    """One interpreter. Every descriptor here is non-blocking; nothing waits."""

    def __init__(self, command: Command) -> None:
        ours, theirs = socket.socketpair()
        stdin, out, err, late = (os.pipe() for _ in range(4))
        for end in (out[1], err[1]):
            try:
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except OSError:  # past the user's quota for pipes: a smaller one works as well
                pass
        inner = [stdin[0], out[1], err[1], theirs.fileno(), late[1]]
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, inner)
        for fd in (stdin[0], out[1], err[1], late[1]):
            os.close(fd)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)
        self.control = ours
        self.stdin, self.out, self.err, self.late = stdin[1], out[0], err[0], late[0]
        for fd in (ours.fileno(), self.stdin, self.out, self.err, self.late):
            os.set_blocking(fd, False)
        self._pipes = select.epoll()  # asked without waiting: which of the three has anything, in one call
        for fd in (self.late, self.out, self.err):
            self._pipes.register(fd, select.EPOLLIN)
        self._codec = command.codec()
        self._nudge = command.nudge
        self._unsent = bytearray()

    # --- control channel ---

    def send(self, body: bytes) -> None:
        """Queue one frame and send as far as it goes."""
        self._unsent += self._codec.encode(body)
        self.flush()

    def flush(self) -> None:
        """Send what is queued, as far as it goes."""
        while self._unsent:
            try:
                sent = self.control.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:  # it is dying: its pidfd tells the rest
                self._unsent.clear()
                return
            del self._unsent[:sent]

    @property
    def unsent(self) -> bool:
        """Whether `flush` has work."""
        return bool(self._unsent)

    def receive(self) -> list[bytes]:
        """Frames that have arrived. Raises ProtocolError for bytes that are none."""
        try:
            data = self.control.recv(_READ_BYTES)
        except (BlockingIOError, ConnectionResetError):
            return []
        frames, answer = self._codec.decode(data)
        if answer:
            self._unsent += answer
            self.flush()
        return frames

    # --- streams ---

    def read(self, fd: int) -> bytes | None:
        """Bytes that wait in a pipe; b"" at its end, None when there is nothing now."""
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return None

    def filled(self) -> list[int]:
        """The pipes in which bytes wait, or whose writers are all gone."""
        return [fd for fd, _ in self._pipes.poll(0)]

    def waiting(self, fd: int) -> int:
        """How many bytes wait in a pipe."""
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"), "little")

    def feed(self, data: bytes | bytearray) -> int:
        """Write to its stdin; returns how many bytes went. Raises BrokenPipeError when it has closed it."""
        try:
            return os.write(self.stdin, data)
        except BlockingIOError:
            return 0

    # --- life ---

    def interrupt(self) -> None:
        """SIGINT, to the interpreter alone or as its command says."""
        try:
            if self._nudge is None:
                signal.pidfd_send_signal(self.pidfd, signal.SIGINT)
            else:
                signal.pidfd_send_signal(self.pidfd, self._nudge)
                os.killpg(self.pid, signal.SIGINT)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """SIGKILL to it and its process group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def died(self) -> str | None:
        """How it ended, in words, or None while it lives. Reaps it."""
        if not select.select([self.pidfd], [], [], 0)[0]:
            return None
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"the interpreter exited with code {code}"
        return f"the interpreter was killed by {_signal_name(-code)}"

    def memory_bytes(self) -> int | None:
        """Resident memory, or None when it cannot be told."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        except (OSError, IndexError, ValueError):
            return None

    def cpu_seconds(self) -> float | None:
        """Processor time used, or None when it cannot be told."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def _become(command: Command, inner: list[int]) -> NoReturn:
    """In the forked child: arrange descriptors and execute. Nothing of the worker's runs after this."""
    try:
        parent = os.getppid()
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(127)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(_OOM_SCORE)
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in inner]
        for target, fd in enumerate(high):
            os.dup2(fd, target)
        os.closerange(len(inner), os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        argv = [*command.prefix, *command.argv]
        os.execve(argv[0], argv, command.env)
    except OSError as error:
        os.write(2, f"{command.argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)

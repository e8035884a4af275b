"""The interpreter as a child process: how it is started, spoken to, signalled and buried.

It gets three pipes as its standard streams and four more descriptors: 3 is the control channel (one end of a
socketpair), 4 a pipe for output that belongs to no eval, 5 a pipe for stacks (see `ask_stack`), 6 one end of a
socketpair on which descriptors come (see `send`). Nothing else is inherited. It dies with the worker.

Around it there may be a wrapping, a sandbox: then the process that we forked is the wrapping's, and the interpreter
is a process below it, which makes itself known by its first word on the control channel (the kernel adds who spoke).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Protocol

from replworker.runtimes.codec import Codec, JsonFrames
from replworker.runtimes.codec import ProtocolError as ProtocolError

CONTROL_FD = 3
BACKGROUND_FD = 4
TRACE_FD = 5
FD_SOCKET_FD = 6
_PIPE_BYTES = 1024 * 1024
_READ_BYTES = 128 * 1024
_STALE_READS = 16  # code may write into the pipe without end
_STARTUP_ERROR_BYTES = 1024
_CREDENTIALS = struct.Struct("=3i")  # pid, uid, gid
_PR_SET_PDEATHSIG = 1
_MAX_TREE = 100
_COMMAND_BYTES = 1000
_OOM_SCORE = 500  # when memory runs out the interpreter goes before its worker, and that before the broker
_libc = ctypes.CDLL(None, use_errno=True)


class SandboxWrapper(Protocol):
    """What stands around an interpreter, from before its start to after its end."""

    prefix: tuple[str, ...]  # comes before the command; the first is an absolute path
    fds: tuple[int, ...]  # inherited as 7, 8, ...

    def enter(self) -> None:
        """In the forked child, right before the execution. Raises OSError."""

    def on_fork(self, pid: int) -> None:
        """In the worker, right after the fork."""

    def death_cause(self) -> str | None:
        """Why the interpreter was killed, where the wrapping knows."""


@dataclass(frozen=True, slots=True)
class InterpreterCommand:
    """What to execute. `env` is the whole environment.

    `codec` makes the interpreter's side of the control channel. With `nudge`, an interrupt goes to the whole process
    group, and this signal to the interpreter besides.
    """

    argv: list[str]
    env: dict[str, str]
    wrapper: SandboxWrapper | None = None
    codec: Callable[[], Codec] = JsonFrames
    extra_signal: signal.Signals | None = None


class InterpreterProcess:
    """One interpreter. Every descriptor here is non-blocking; nothing waits."""

    def __init__(self, command: InterpreterCommand) -> None:
        ours, theirs = socket.socketpair()
        self._fd_socket, parcel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, out, err, late, trace = (os.pipe() for _ in range(5))
        os.set_blocking(trace[1], False)  # written from a signal handler, which must never wait
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        for end in (out[1], err[1]):
            try:
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except OSError:  # past the user's quota for pipes: a smaller one works as well
                pass
        inner = [stdin[0], out[1], err[1], theirs.fileno(), late[1], trace[1], parcel.fileno()]
        self._wrapper = command.wrapper
        self.outer_pid = os.fork()  # the interpreter, or its wrapping
        if self.outer_pid == 0:
            _exec_child(command, inner)
        for fd in (stdin[0], out[1], err[1], late[1], trace[1]):
            os.close(fd)
        theirs.close()
        parcel.close()
        self.pidfd = os.pidfd_open(self.outer_pid)
        self.pid, self._inner_pidfd = self.outer_pid, self.pidfd  # the interpreter's, once it has spoken
        self._handshake_done = False
        self.control = ours
        self.stdin, self.out, self.err, self.background, self.trace = stdin[1], out[0], err[0], late[0], trace[0]
        for fd in (
            ours.fileno(),
            self._fd_socket.fileno(),
            self.stdin,
            self.out,
            self.err,
            self.background,
            self.trace,
        ):
            os.set_blocking(fd, False)
        self._pipes = select.epoll()  # asked without waiting: which of the three has anything, in one call
        for fd in (self.background, self.out, self.err):
            self._pipes.register(fd, select.EPOLLIN)
        self._codec = command.codec()
        self._extra_signal = command.extra_signal
        self._unsent = bytearray()
        if self._wrapper is not None:
            self._wrapper.on_fork(self.outer_pid)

    # --- control channel ---

    def send(self, body: bytes, fd: int | None = None) -> None:
        """Queue one frame and send as far as it goes. A descriptor that belongs to it goes before it, at once.

        The caller keeps its own. One frame with a descriptor may be unanswered at a time: of two, the last is taken.
        """
        if fd is not None:
            try:
                socket.send_fds(self._fd_socket, [b"\0"], [fd])
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                pass  # it is dying, or does not read them: then it answers that no descriptor came
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
    def has_unsent(self) -> bool:
        """Whether `flush` has work."""
        return bool(self._unsent)

    def receive(self) -> list[bytes]:
        """Frames that have arrived. Raises ProtocolError for bytes that are none."""
        try:
            data = self.control.recv(_READ_BYTES) if self._handshake_done else self._read_handshake()
        except (BlockingIOError, ConnectionResetError):
            return []
        frames, answer = self._codec.decode(data)
        if answer:
            self._unsent += answer
            self.flush()
        return frames

    def _read_handshake(self) -> bytes:
        """Nothing of the user's runs before it, so it is the interpreter that speaks; its pid is seen as ours."""
        data, ancillary, _, _ = self.control.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        self._handshake_done = True
        for _, kind, payload in ancillary:
            pid = _CREDENTIALS.unpack(payload)[0] if kind == socket.SCM_CREDENTIALS else 0
            if pid not in (0, self.outer_pid):
                with suppress(ProcessLookupError):  # it has ended since, as its wrapping will tell
                    self._inner_pidfd, self.pid = os.pidfd_open(pid), pid
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        return data

    @property
    def sandboxed_pid(self) -> int | None:
        """The pid of an interpreter that has spoken from inside its wrapping."""
        return self.pid if self.pid != self.outer_pid else None

    # --- streams ---

    def read(self, fd: int) -> bytes | None:
        """Bytes that wait in a pipe; b"" at its end, None when there is nothing now."""
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return None

    def readable_pipes(self) -> list[int]:
        """The pipes in which bytes wait, or whose writers are all gone."""
        return [fd for fd, _ in self._pipes.poll(0)]

    def unread_bytes(self, fd: int) -> int:
        """How many bytes wait in a pipe."""
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"), "little")

    def write_stdin(self, data: bytes | bytearray) -> int:
        """Write to its stdin; returns how many bytes went. Raises BrokenPipeError when it has closed it."""
        try:
            return os.write(self.stdin, data)
        except BlockingIOError:
            return 0

    # --- life ---

    def interrupt(self) -> None:
        """SIGINT, to the interpreter alone or as its command says."""
        try:
            if self._extra_signal is None:
                signal.pidfd_send_signal(self._inner_pidfd, signal.SIGINT)
            else:
                signal.pidfd_send_signal(self._inner_pidfd, self._extra_signal)
                os.killpg(os.getpgid(self.pid), signal.SIGINT)
        except ProcessLookupError:
            pass

    def request_stack(self) -> None:
        """Ask where the code is, without stopping it: text for `stacks.parse` comes in the `trace` pipe.

        Only for an interpreter whose Ready says "stack": SIGUSR1 ends others. What an earlier answer left is dropped.
        No mark ends an answer, and it is written in one go: it is whole when nothing more has come for a moment.
        """
        for _ in range(_STALE_READS):
            if not self.read(self.trace):
                break
        try:
            signal.pidfd_send_signal(self._inner_pidfd, signal.SIGUSR1)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """SIGKILL to it and its process group, or to its wrapping, which takes all that is in it along."""
        for kill in (self._kill, self._kill_group):
            try:
                kill()
            except ProcessLookupError:
                continue

    def _kill(self) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _kill_group(self) -> None:
        os.killpg(self.outer_pid, signal.SIGKILL)  # which it does not lead yet when it was just forked

    def poll_exit(self) -> str | None:
        """How it ended, in words, or None while it lives. Reaps it."""
        if not select.select([self.pidfd], [], [], 0)[0]:
            return None
        _, status = os.waitpid(self.outer_pid, 0)
        code = os.waitstatus_to_exitcode(status)
        known = self._wrapper.death_cause() if self._wrapper is not None else None
        if known is not None:
            return known
        who = "the interpreter"
        if self._wrapper is not None and code < 0:
            who = "the sandbox around the interpreter (bwrap)"
        elif self._wrapper is not None and code > 128:  # how a wrapping says that a signal ended what is in it
            code = 128 - code
        if code < 0:
            return f"{who} was killed by {_signal_name(-code)}"
        return f"the interpreter exited with code {code}{self._startup_error()}"

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP): it hears nothing until another lets it go on."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] == b"T"
        except (OSError, IndexError):
            return False

    def _startup_error(self) -> str:
        """What it said before it was there at all: why it could not be started."""
        words = None if self._handshake_done else self.read(self.err)
        text = (words or b"")[-_STARTUP_ERROR_BYTES:].decode(errors="replace").strip()
        return f" at its start: {text}" if text else ""

    def close(self) -> None:
        """Give every descriptor back. For one that is dead and buried."""
        self.control.close()
        self._fd_socket.close()
        self._pipes.close()
        for fd in {self.stdin, self.out, self.err, self.background, self.trace, self.pidfd, self._inner_pidfd}:
            os.close(fd)

    def cwd(self) -> str | None:
        """Where it is now, or None when it cannot be told."""
        try:
            return os.readlink(f"/proc/{self.pid}/cwd")
        except OSError:
            return None

    def process_tree(self) -> list[tuple[int, str]]:
        """It and the processes it started, with their command lines; at most so many."""
        found: list[tuple[int, str]] = []
        pids = [self.pid]
        while pids and len(found) < _MAX_TREE:
            pid = pids.pop(0)
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read(_COMMAND_BYTES).rstrip(b"\0").split(b"\0")
                with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
                    pids += [int(child) for child in file.read().split()]
            except OSError:
                continue
            found.append((pid, b" ".join(words).decode("utf-8", "replace")))
        return found

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


def raise_oom_score(least: int) -> None:
    """Have the kernel prefer this process when memory runs out. To raise the score is allowed to everybody; it is not
    lowered, which is not. Raises OSError."""
    with open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < least:
            file.seek(0)
            file.write(str(least))


def _exec_child(command: InterpreterCommand, inner: list[int]) -> NoReturn:
    """In the forked child: arrange descriptors and execute. Nothing of the worker's runs after this."""
    doing = command.argv[0]
    try:
        parent = os.getppid()
        os.setsid()
        raise_oom_score(_OOM_SCORE)
        wrapping = command.wrapper
        wanted = [*inner, *(wrapping.fds if wrapping else ())]
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in wanted]
        for target, fd in enumerate(high):
            os.dup2(fd, target)
        os.closerange(len(wanted), os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        argv = [*(wrapping.prefix if wrapping else ()), *command.argv]
        if wrapping:
            doing = "the sandbox"
            wrapping.enter()
            doing = argv[0]
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after a change of user, which clears it
        if os.getppid() != parent:
            os._exit(127)
        os.execve(argv[0], argv, command.env)
    except OSError as error:
        named = f" {error.filename}:" if error.filename not in (None, doing) else ""
        os.write(2, f"{doing}:{named} {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(127)

"""Interpreter process: start, I/O, signals and its end.

It gets three pipes as standard streams and four more descriptors: 3 is the control channel (one end of a socketpair), 4
a pipe for background output, 5 a pipe for stacks (see `request_stack`), 6 one end of a socketpair for descriptors (see
`send`). Nothing else is inherited. It dies with the worker.

With a sandbox, the forked process is the sandbox's wrapper and the interpreter a descendant, whose pid the kernel
attaches to its first message on the control channel. A sandbox may last longer than its interpreter, and have several.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

from replworker.runtimes.codec import ProtocolError as ProtocolError
from replworker.runtimes.endpoints import Endpoints
from replworker.runtimes.exit_status import describe_exit, read_exit_status, signal_name
from replworker.runtimes.outer_process import OuterProcess
from replworker.runtimes.process_start import InterpreterCommand, exec_child

_OOM_SCORE = 800  # above its waiting copies: the session goes on from one of them
_READ_BYTES = 128 * 1024
_STALE_READS = 16  # user code may write to the pipe endlessly
_STARTUP_ERROR_BYTES = 1024
_CREDENTIALS = struct.Struct("=3i")  # pid, uid, gid
_MAX_TREE = 100
_COMMAND_BYTES = 1000


class InterpreterProcess:
    """An interpreter, and the process around it. All descriptors are non-blocking and no method waits.

    `exit_fd` is readable when the interpreter or a sandbox that lasts longer has ended.
    """

    def __init__(self, command: InterpreterCommand) -> None:
        ends = Endpoints()
        pid = os.fork()  # the interpreter, or its wrapper
        if pid == 0:
            exec_child(command, ends.inner)
        ends.close_inner()
        self._begin(command, OuterProcess(pid), ends)
        if self._wrapper is not None:
            self._wrapper.on_fork(pid)

    def _begin(self, command: InterpreterCommand, outer: OuterProcess, ends: Endpoints) -> None:
        self._command = command
        self._wrapper = command.wrapper
        self._outer = outer
        self._use_endpoints(ends)
        self.outer_pid = outer.pid
        self.pid, self._inner_pidfd = outer.pid, outer.pidfd  # the interpreter's, after the handshake
        self.kernel_session: int | None = None  # likewise; its processes are in it unless they have left it
        self._handshake_done = False
        self._exits = select.epoll()
        self._exits.register(outer.pidfd, select.EPOLLIN)
        self.exit_fd: int = self._exits.fileno()
        self.retired: list[Endpoints] = []
        self.has_closed_control = False
        self._codec = command.codec(self._read_trace)
        self._extra_signal = command.extra_signal
        self._unsent = bytearray()

    def _use_endpoints(self, ends: Endpoints) -> None:
        self._ends, self._fd_socket, self.control = ends, ends.fd_socket, ends.control
        self.stdin, self.out, self.err = ends.stdin, ends.out, ends.err
        self.background, self.trace = ends.background, ends.trace

    # --- control channel ---

    def send(self, body: bytes, fd: int | None = None, number: int = 0) -> None:
        """Queue a frame and send as far as possible, its descriptor immediately before it.

        The caller keeps its own descriptor, which goes under the number of the frame.
        """
        if fd is not None:
            try:
                socket.send_fds(self._fd_socket, [str(number).encode()], [fd])
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                pass  # it is dying or does not read: then it replies that no descriptor arrived
        self._unsent += self._codec.encode(body)
        self.flush()

    def flush(self) -> None:
        """Send queued bytes as far as possible."""
        while self._unsent:
            try:
                sent = self.control.send(self._unsent)
            except BlockingIOError:
                return
            except OSError:  # it is dying: its pidfd reports it
                self._unsent.clear()
                return
            del self._unsent[:sent]

    @property
    def has_unsent(self) -> bool:
        """True if `flush` has work."""
        return bool(self._unsent)

    def receive(self) -> list[bytes]:
        """Return the frames that have arrived.

        Raises:
            ProtocolError: the bytes are not frames
        """
        try:
            data = self.control.recv(_READ_BYTES) if self._handshake_done else self._read_handshake()
        except (BlockingIOError, ConnectionResetError):
            return []
        self.has_closed_control = not data
        frames, answer = self._codec.decode(data)
        if answer:
            self._unsent += answer
            self.flush()
        return frames

    def _read_handshake(self) -> bytes:
        """Read the first message and the interpreter's pid. No user code runs before it."""
        data, ancillary, _, _ = self.control.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
        self._handshake_done = bool(data)
        for _, kind, payload in ancillary:
            pid = _CREDENTIALS.unpack(payload)[0] if kind == socket.SCM_CREDENTIALS else 0
            if pid not in (0, self.outer_pid):
                with suppress(ProcessLookupError):  # it has exited since; the wrapper reports it
                    self._use_interpreter(pid)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        return data

    def _read_trace(self) -> bytes:
        data = b""
        while piece := self.read(self.trace):
            data += piece
        return data

    def _use_interpreter(self, pid: int) -> None:
        handle = os.pidfd_open(pid)
        if self._inner_pidfd != self._outer.pidfd:
            os.close(self._inner_pidfd)  # which removes it from the epoll
        self._inner_pidfd, self.pid, self.kernel_session = handle, pid, read_kernel_session(pid)
        if self._wrapper is not None and self._wrapper.has_holder:  # else the wrapper ends with it
            self._exits.register(handle, select.EPOLLIN)
            with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
                file.write(str(_OOM_SCORE))

    # --- another interpreter in the same sandbox ---

    def kill_interpreter(self) -> None:
        """Kill the interpreter (SIGKILL), but not its sandbox; its end is not reported."""
        if self._inner_pidfd == self._outer.pidfd:
            return
        with suppress(FileNotFoundError):  # its end was reported already
            self._exits.unregister(self._inner_pidfd)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._inner_pidfd, signal.SIGKILL)

    def start_from(self, wake: Callable[[list[int]], bool]) -> bool:
        """Let a waiting copy start an interpreter in place of this one. Return False if the copy has ended.

        `wake` sends it the descriptors. The first message of the new interpreter is its handshake. Bytes to and from
        the last one are lost; its endpoints are in `retired` until their watcher has closed them.
        """
        ends = Endpoints()
        if not wake(ends.inner):
            ends.close()
            return False
        ends.close_inner()
        self.retired.append(self._ends)
        self._use_endpoints(ends)
        self._handshake_done = self.has_closed_control = False
        self._codec = self._command.codec(self._read_trace)
        self._unsent.clear()
        return True

    def start_beside(self, wake: Callable[[list[int]], bool]) -> InterpreterProcess:
        """Let a waiting copy start a second interpreter in this sandbox; `wake` as in `start_from`.

        If the copy has ended, the control channel of the new one is at its end.
        """
        ends = Endpoints()
        wake(ends.inner)
        ends.close_inner()
        beside = InterpreterProcess.__new__(InterpreterProcess)
        beside._begin(self._command, self._outer, ends)
        return beside

    @property
    def is_held(self) -> bool:
        """True if its sandbox lasts longer and goes on."""
        return self._wrapper is not None and self._wrapper.has_holder and not self._outer.has_ended

    @property
    def sandboxed_pid(self) -> int | None:
        """Pid of an interpreter inside a sandbox, once it has sent its first message."""
        return self.pid if self.pid != self.outer_pid else None

    # --- streams ---

    def read(self, fd: int) -> bytes | None:
        """Read from a pipe; b"" at its end, None if nothing is available."""
        try:
            return os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return None

    def readable_pipes(self) -> list[int]:
        """Return the pipes that have data or whose writers have all closed."""
        return self._ends.readable_pipes()

    def unread_bytes(self, fd: int) -> int:
        """Return the number of bytes available in a pipe."""
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"), "little")

    def write_stdin(self, data: bytes | bytearray) -> int:
        """Write to stdin and return the number of bytes written.

        Raises:
            BrokenPipeError: the interpreter has closed its stdin
        """
        try:
            return os.write(self.stdin, data)
        except BlockingIOError:
            return 0

    # --- lifecycle ---

    def interrupt(self) -> None:
        """Send SIGINT to the interpreter, and as its command requests."""
        try:
            if self._extra_signal is None:
                signal.pidfd_send_signal(self._inner_pidfd, signal.SIGINT)
            else:
                signal.pidfd_send_signal(self._inner_pidfd, self._extra_signal)
                os.killpg(os.getpgid(self.pid), signal.SIGINT)
        except ProcessLookupError:
            pass

    def request_stack(self) -> None:
        """Request the stacks of all threads without stopping them; text for `stacks.parse` arrives in the `trace` pipe.

        Only for an interpreter whose ReadyFrame lists "stack": SIGUSR1 kills others. Remains of an earlier answer are
        dropped. An answer has no end mark but is written at once, so it is complete when no more bytes follow.
        """
        for _ in range(_STALE_READS):
            if not self.read(self.trace):
                break
        try:
            signal.pidfd_send_signal(self._inner_pidfd, signal.SIGUSR1)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """Kill the interpreter and its process group (SIGKILL), or its sandbox with everything inside."""
        for kill in (self._outer.kill, self._kill_group):
            try:
                kill()
            except ProcessLookupError:
                continue

    def _kill_group(self) -> None:
        os.killpg(self.outer_pid, signal.SIGKILL)  # which it does not lead yet right after the fork

    def poll_exit(self) -> str | None:
        """Return how the interpreter or its sandbox ended, in words, or None while both run."""
        ended = {fd for fd, _ in self._exits.poll(0)}
        if not ended:
            return None
        if self._outer.pidfd in ended:
            self._exits.unregister(self._outer.pidfd)
            status = self._outer.wait()
        else:
            self._exits.unregister(self._inner_pidfd)  # told once; another may take its place
        known = self._wrapper.death_cause() if self._wrapper is not None else None
        if known is not None:
            return known
        if self._outer.pidfd in ended:
            return self._describe_outer_exit(status)
        return describe_exit(read_exit_status(self._inner_pidfd))

    def _describe_outer_exit(self, status: int) -> str:
        code = os.waitstatus_to_exitcode(status)
        if self._wrapper is not None and code < 0:
            return f"the sandbox around the interpreter (bwrap) was killed by {signal_name(-code)}"
        if self._wrapper is not None and code > 128:  # the wrapper's code for a signal inside
            return f"the interpreter was killed by {signal_name(code - 128)}"
        return describe_exit(status) + (self._startup_error() if code >= 0 else "")

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped it (SIGSTOP), so that it reacts to nothing until continued."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] == b"T"
        except (OSError, IndexError):
            return False

    def _startup_error(self) -> str:
        """Return stderr of an interpreter that failed before its first message: why it did not start."""
        words = None if self._handshake_done else self.read(self.err)
        text = (words or b"")[-_STARTUP_ERROR_BYTES:].decode(errors="replace").strip()
        return f" at its start: {text}" if text else ""

    def close(self) -> None:
        """Close all descriptors, after the process was reaped."""
        self.close_interpreter()
        self._outer.close()

    def close_interpreter(self) -> None:
        """Close the descriptors of this interpreter, but not that of a sandbox which it shares."""
        self._ends.close()
        self._exits.close()
        if self._inner_pidfd != self._outer.pidfd:
            os.close(self._inner_pidfd)

    def cwd(self) -> str | None:
        """Return its working directory, or None if unknown."""
        try:
            return os.readlink(f"/proc/{self.pid}/cwd")
        except OSError:
            return None

    def open_root(self) -> int:
        """Return an O_PATH descriptor of the root directory that it sees.

        Raises:
            OSError: it has ended
        """
        fd = os.open(f"/proc/{self.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if select.select([self._inner_pidfd], [], [], 0)[0]:  # the pid may already be another process's
            os.close(fd)
            raise ProcessLookupError
        return fd

    def process_tree(self) -> list[tuple[int, str]]:
        """Return its process tree as pids and command lines, bounded in number."""
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
        """Return resident memory in bytes, or None if unknown."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        except (OSError, IndexError, ValueError):
            return None

    def cpu_seconds(self) -> float | None:
        """Return CPU time in seconds, or None if unknown."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return None


def read_kernel_session(pid: int) -> int | None:
    """Return the number of the kernel's session that a process is in (see setsid), or None if it has ended."""
    return _read_stat(pid, 3)


def read_parent(pid: int) -> int | None:
    """Return the parent of a process, or None if the process has ended."""
    return _read_stat(pid, 1)


def _read_stat(pid: int, field: int) -> int | None:
    """Return a number of /proc/PID/stat; `field` counts from the state, which is 0 (proc(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[field])
    except (OSError, IndexError, ValueError):
        return None

"""A real python harness at the end of a real socketpair and pipes, with a deadline on every wait."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TIMEOUT_S = 20.0
HARNESS = Path(__file__).parents[2] / "worker/replworker/runtimes/python/harness.py"


def interpreters() -> list[str]:
    """Return this Python, and every Python >= 3.8 that pyenv has."""
    found = [sys.executable]
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")):
        if int(path.parts[-3].split(".")[1]) >= 8:
            found.append(str(path))
    return found


def packed(message: object) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


class Harness:
    """Starts a harness, talks to it, keeps all that it writes; `close` leaves no process behind."""

    def __init__(self, python: str = sys.executable) -> None:
        self.control, theirs = socket.socketpair()
        late, late_theirs = os.pipe()
        self.trace, trace_theirs = os.pipe()
        os.set_blocking(self.trace, False)
        os.set_blocking(trace_theirs, False)
        self._fd_sender, fd_receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = (theirs.fileno(), late_theirs, trace_theirs, fd_receiver.fileno())
        self.process = subprocess.Popen(
            [python, "-X", "utf8", str(HARNESS), *map(str, given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=given,
            start_new_session=True,
        )
        theirs.close()
        fd_receiver.close()
        os.close(late_theirs)
        os.close(trace_theirs)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin_fd = self.process.stdin.fileno()
        self._late = late
        self._frames = bytearray()
        self._sinks = {
            self.control.fileno(): self._frames,
            self.process.stdout.fileno(): bytearray(),
            self.process.stderr.fileno(): bytearray(),
            late: bytearray(),
        }
        self.stdout, self.stderr, self.late = list(self._sinks.values())[1:]
        self._open = set(self._sinks)
        self.input_requests = 0
        self.number = 0

    def send(self, **message: Any) -> None:
        self.control.sendall(packed(message))

    def ask(self, op: str, fd: int | None = None, **fields: Any) -> dict[str, Any]:
        """The answer to a frame other than an eval; `fd` goes along."""
        self.number += 1
        if fd is not None:
            self.send_descriptor(fd, self.number)
        self.send(op=op, n=self.number, **fields)
        answer = self.frame()
        assert answer["n"] == self.number
        return answer

    def send_descriptor(self, fd: int, number: int) -> None:
        """Send a descriptor, as the worker does just before the frame that it belongs to."""
        socket.send_fds(self._fd_sender, [b"%d" % number], [fd])

    def frame(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """The next frame; fails when none comes."""
        self.until(self._whole_frame, timeout_s)
        end = 4 + int.from_bytes(self._frames[:4], "big")
        message = json.loads(bytes(self._frames[4:end]))
        del self._frames[:end]
        assert isinstance(message, dict)
        return message

    def start_eval(
        self, code: str, *, stdin: bool = False, silent: bool = False, history: bool = True, **more: Any
    ) -> int:
        self.number += 1
        options = {"silent": silent, "stdin": stdin, "history": history, **more}
        self.send(op="eval", n=self.number, code=code, name=f"<work:{self.number}>", **options)
        return self.number

    def result(self, number: int | None = None, lines: tuple[str, ...] = ()) -> dict[str, Any]:
        """The result of the eval that was started last; each need-input is answered with the next line."""
        left = list(lines)
        while True:
            answer = self.frame()
            assert answer["n"] == (self.number if number is None else number), answer
            if answer["t"] == "result":
                assert not left, f"never asked for {left}"
                return answer
            assert answer["t"] == "need-input"
            self.input_requests += 1
            if left:
                os.write(self.stdin_fd, left.pop(0).encode())

    def eval(self, code: str, lines: tuple[str, ...] = (), **options: Any) -> dict[str, Any]:
        return self.result(self.start_eval(code, **options), lines)

    def value(self, code: str, lines: tuple[str, ...] = (), **options: Any) -> str:
        answer = self.eval(code, lines, **options)
        assert answer["outcome"] == "ok", answer["traceback"]
        assert isinstance(answer["value"], str)
        return answer["value"]

    def interrupt(self) -> None:
        """Interrupt the eval that was started last, as the worker does: say which, then signal."""
        self.send(op="interrupt", n=self.number)
        self.signal()

    def signal(self) -> None:
        os.kill(self.process.pid, signal.SIGINT)

    def signal_until_answered(self) -> None:
        """Signal again and again, as something that swallows interrupts needs, until a frame is there."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self._whole_frame():
            assert time.monotonic() < deadline, "no answer"
            self.signal()
            self._pump(0.02)

    def until(self, done: Any, timeout_s: float = TIMEOUT_S) -> None:
        """Read whatever comes until `done()`; fails at the deadline, or when everything is closed before."""
        deadline = time.monotonic() + timeout_s
        while not done():
            left = deadline - time.monotonic()
            assert left > 0, f"nothing after {timeout_s} s; stderr: {bytes(self.stderr)[-2000:]!r}"
            assert self._open, f"the harness is gone; stderr: {bytes(self.stderr)[-2000:]!r}"
            self._pump(left)

    def exit_code(self, timeout_s: float = TIMEOUT_S) -> int:
        """Close nothing, wait for the end, and read all that was written before it."""
        self.until(lambda: not self._open, timeout_s)
        return self.process.wait(timeout_s)

    def hang_up(self) -> int:
        self.control.shutdown(socket.SHUT_WR)
        return self.exit_code()

    def close(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(TIMEOUT_S)
        self.control.close()
        self._fd_sender.close()
        os.close(self._late)
        os.close(self.trace)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _whole_frame(self) -> bool:
        return len(self._frames) >= 4 and len(self._frames) >= 4 + int.from_bytes(self._frames[:4], "big")

    def _pump(self, seconds: float) -> None:
        for fd in select.select(list(self._open), [], [], seconds)[0]:
            try:
                data = os.read(fd, 1 << 18)
            except ConnectionResetError:
                data = b""
            self._sinks[fd] += data
            if not data:
                self._open.discard(fd)

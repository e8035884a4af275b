"""Process information: `info` and `stack`."""

from __future__ import annotations

import os
import time

import msgspec

from replwire.deadlines import Deadlines
from replwire.ops import Stack
from replwire.replies import ProcessInfo, StackFrame, ThreadStack
from replworker.interpreter import Interpreter
from replworker.introspection import NameQueries
from replworker.memory import MemoryWatch
from replworker.reply_sender import ReplySender
from replworker.runtimes import frames
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.session_sandbox import SessionSandbox
from replworker.session_streams import SessionStreams
from replworker.stacks import MAX_BYTES, parse

_MAX_VARIABLES = 200
_STACK_S = 0.5  # the signal handler takes well below a millisecond
_STACK_LOOK_S = 0.002


class _InfoRequest(msgspec.Struct):
    id: str
    variables: bool
    base: dict[str, object]


_decode_info = msgspec.json.Decoder(_InfoRequest).decode
_decode_stack = msgspec.json.Decoder(Stack).decode


class Inspector:
    """Inspects the interpreter from outside, and queries variables when it is idle."""

    def __init__(
        self,
        replies: ReplySender,
        interpreter: Interpreter,
        process: InterpreterProcess,
        names: NameQueries,
        timers: Deadlines,
        memory: MemoryWatch,
        streams: SessionStreams,
        sandbox: SessionSandbox | None,
    ) -> None:
        self._replies = replies
        self._interpreter = interpreter
        self._process = process
        self._names = names
        self._timers = timers
        self._memory = memory
        self._streams = streams
        self._sandbox = sandbox
        self._started = time.monotonic()
        self._stack_waiters: list[tuple[int, str]] = []  # routes and ids

    def handle_info(self, route: int, body: bytes) -> None:
        """Complete the broker's part of `info` and reply."""
        request, ready = _decode_info(body), self._interpreter.ready
        info = request.base | {
            "pid": self._process.pid,
            "worker-pid": os.getpid(),
            "memory": self._memory.snapshot(msgspec.convert(request.base.get("memory"), dict[str, int | None])),
            "memory-bytes": self._process.memory_bytes(),
            "cpu-seconds": self._process.cpu_seconds(),
            "uptime-ms": round((time.monotonic() - self._started) * 1000),
            "version": ready.version if ready else None,
            "executable": ready.executable if ready else None,
            "directory": self._process.cwd(),
            "workspace": None if self._sandbox is None else self._sandbox.workspace,
            "background-bytes": self._streams.background.unread,
            "stdin-unread-bytes": self._streams.stdin.unread_bytes(),
            "variables": None,
        }

        def answer(event: frames.FrameEvent | None) -> None:
            if isinstance(event, frames.VariablesFrame):
                info["variables"] = msgspec.to_builtins(event.vars)
                info["variables-total"] = event.total
            self._replies.send_done(route, request.id, info=info)

        if not request.variables or self._streams.evals.running is not None or not self._interpreter.supports("vars"):
            answer(None)
        else:
            self._names.query(frames.VarsFrame(self._interpreter.next_number(), _MAX_VARIABLES), answer)

    def handle_stack(self, route: int, body: bytes) -> None:
        """Request the stacks of all threads with a signal, which also interrupts C code.

        Concurrent requests get the same answer: two dumps in one pipe could not be told apart.
        """
        asked = route, _decode_stack(body).id
        if not self._interpreter.supports("stack"):
            self._send_stack([asked], b"")
            return
        self._stack_waiters.append(asked)
        if len(self._stack_waiters) > 1:
            return
        self._process.request_stack()
        dump = bytearray()
        end = time.monotonic() + _STACK_S

        def look(now: float) -> None:
            """Collect the dump. A signal handler writes it at once, so it is complete when no more bytes follow."""
            more = self._process.read(self._process.trace) or b""
            dump.extend(more)
            if (more or not dump) and now < end and len(dump) < MAX_BYTES:
                self._timers.call_at(now + _STACK_LOOK_S, look)
                return
            asked, self._stack_waiters = self._stack_waiters, []
            self._send_stack(asked, bytes(dump))

        look(time.monotonic())

    def _send_stack(self, asked: list[tuple[int, str]], dump: bytes) -> None:
        threads = [
            ThreadStack(each["thread"], [StackFrame(**frame) for frame in each["frames"]]) for each in parse(dump)
        ]
        processes = [ProcessInfo(pid, command) for pid, command in self._process.process_tree()]
        for route, request_id in asked:
            self._replies.send_done(route, request_id, threads=threads, processes=processes)

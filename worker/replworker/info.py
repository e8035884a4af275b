"""What there is to know of a session's process: `info` and `stack`."""

from __future__ import annotations

import time

import msgspec

from replwire.deadlines import Deadlines
from replwire.ops import Stack
from replwire.replies import Frame, Process, Thread
from replworker.interpreter import Interpreter
from replworker.jobs import Jobs
from replworker.memory import MemoryWatch
from replworker.names import Names
from replworker.output import Background
from replworker.runtimes import frames
from replworker.runtimes.child import Child
from replworker.stacks import MAX_BYTES, parse
from replworker.stdin import Input
from replworker.voice import Voice

_MAX_VARIABLES = 200
_STACK_S = 0.5  # a signal handler that writes down every thread takes well below a millisecond
_STACK_LOOK_S = 0.002


class _InfoAsk(msgspec.Struct):
    id: str
    variables: bool
    base: dict[str, object]


_decode_info = msgspec.json.Decoder(_InfoAsk).decode
_decode_stack = msgspec.json.Decoder(Stack).decode


class Inspector:
    """Looks at the interpreter from outside, and asks it for variables when it is idle."""

    def __init__(
        self,
        voice: Voice,
        interpreter: Interpreter,
        child: Child,
        names: Names,
        timers: Deadlines,
        memory: MemoryWatch,
    ) -> None:
        self._voice = voice
        self._interpreter = interpreter
        self._child = child
        self._names = names
        self._timers = timers
        self._memory = memory
        self._started = time.monotonic()
        self._stack_asked: list[tuple[int, str]] = []  # routes and ids

    def info(self, route: int, body: bytes, jobs: Jobs, background: Background, given: Input) -> None:
        """The broker's part completed."""
        request, ready = _decode_info(body), self._interpreter.ready
        info = request.base | {
            "pid": self._child.pid,
            "memory": self._memory.shown(msgspec.convert(request.base.get("memory"), dict[str, int | None])),
            "memory-bytes": self._child.memory_bytes(),
            "cpu-seconds": self._child.cpu_seconds(),
            "uptime-ms": round((time.monotonic() - self._started) * 1000),
            "version": ready.version if ready else None,
            "executable": ready.executable if ready else None,
            "folder": self._child.folder(),
            "background-bytes": background.unread,
            "stdin-unread-bytes": given.unread(),
            "variables": None,
        }

        def answer(event: frames.Event | None) -> None:
            if isinstance(event, frames.Variables):
                info["variables"] = msgspec.to_builtins(event.vars)
                info["variables-total"] = event.total
            self._voice.done(route, request.id, info=info)

        if not request.variables or jobs.running is not None or not self._interpreter.can("vars"):
            answer(None)
        else:
            self._names.ask(frames.Vars(self._interpreter.next(), _MAX_VARIABLES), answer)

    def stack(self, route: int, body: bytes) -> None:
        """Where the code is: asked of a python interpreter by a signal, which works inside C code too.

        Who asks while an answer is on its way gets the same one: two texts in one pipe could not be told apart.
        """
        asked = route, _decode_stack(body).id
        if not self._interpreter.can("stack"):
            self._say_stack([asked], b"")
            return
        self._stack_asked.append(asked)
        if len(self._stack_asked) > 1:
            return
        self._child.ask_stack()
        told = bytearray()
        end = time.monotonic() + _STACK_S

        def look(now: float) -> None:
            """It is written in one go by a signal handler: whole when something has come, and then no more."""
            more = self._child.read(self._child.trace) or b""
            told.extend(more)
            if (more or not told) and now < end and len(told) < MAX_BYTES:
                self._timers.at(now + _STACK_LOOK_S, look)
                return
            asked, self._stack_asked = self._stack_asked, []
            self._say_stack(asked, bytes(told))

        look(time.monotonic())

    def _say_stack(self, asked: list[tuple[int, str]], told: bytes) -> None:
        threads = [Thread(each["thread"], [Frame(**frame) for frame in each["frames"]]) for each in parse(told)]
        processes = [Process(pid, command) for pid, command in self._child.family()]
        for route, request_id in asked:
            self._voice.done(route, request_id, threads=threads, processes=processes)

"""Questions about the session's names: completion, lookup, lists. None is asked of an interpreter that runs code."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from replwire.deadlines import Deadlines
from replwire.ops import ClearBindings, Complete, Lookup, LsBindings, Request
from replwire.replies import Binding
from replworker.interpreter import Interpreter
from replworker.jobs import Jobs
from replworker.runtimes import frames
from replworker.voice import Voice

_PATIENCE_S = 2.0  # then the question is given up: something of the user's hangs
_MAX_BINDINGS = 1000

_decode_complete = msgspec.json.Decoder(Complete).decode
_decode_lookup = msgspec.json.Decoder(Lookup).decode
_decode_bindings = msgspec.json.Decoder(LsBindings).decode
_decode_clear = msgspec.json.Decoder(ClearBindings).decode


class Names:
    """All of them, over one interpreter."""

    def __init__(self, voice: Voice, interpreter: Interpreter, timers: Deadlines, jobs: Callable[[], Jobs]) -> None:
        self._voice = voice
        self._interpreter = interpreter
        self._timers = timers
        self._jobs = jobs

    def ask(
        self,
        question: frames.Vars | frames.Clear | frames.Complete | frames.Lookup,
        then: Callable[[frames.Event | None], None],
    ) -> None:
        """Ask; None is the answer when none comes in time."""

        def give_up(_: float) -> None:
            self._interpreter.forget(question.n)
            then(None)

        late = self._timers.at(time.monotonic() + _PATIENCE_S, give_up)

        def in_time(event: frames.Event) -> None:
            self._timers.cancel(late)
            then(event)

        self._interpreter.ask(question, in_time)

    def _may(self, route: int, request: Request, frame: str) -> bool:
        request_id, op = request.id, request.op
        if not self._interpreter.can(frame):
            self._voice.refuse(route, request_id, "not-supported", f"{op}: not with this runtime")
        elif self._jobs().running is not None:
            self._voice.refuse(route, request_id, "busy", f"{op}: the session runs an eval", retry_after_ms=1000)
        else:
            return True
        return False

    def complete(self, route: int, body: bytes) -> None:
        """`complete`: offsets are in bytes on the wire, in characters below."""
        request = _decode_complete(body)
        code = request.code.encode("utf-8", "surrogatepass")
        if not 0 <= request.pos <= len(code):
            self._voice.done(route, request.id, completions=[], start=max(0, min(request.pos, len(code))))
            return
        if not self._may(route, request, "complete"):
            return
        pos = len(code[: request.pos].decode("utf-8", "ignore"))

        def answer(event: frames.Event | None) -> None:
            found, start = [], pos
            if isinstance(event, frames.Completions):
                found, start = event.items, event.start
            before = request.code[: max(0, start)].encode("utf-8", "surrogatepass")
            self._voice.done(route, request.id, completions=found, start=len(before))

        self.ask(frames.Complete(self._interpreter.next(), request.code, pos, request.limit), answer)

    def lookup(self, route: int, body: bytes) -> None:
        """`lookup`."""
        request = _decode_lookup(body)
        if not self._may(route, request, "lookup"):
            return

        def answer(event: frames.Event | None) -> None:
            if not isinstance(event, frames.Found) or not event.found:
                self._voice.done(route, request.id, found=False)
                return
            self._voice.done(
                route,
                request.id,
                found=True,
                name=event.name,
                type=event.type,
                doc=event.doc,
                signature=event.signature,
                methods=event.methods,
                file=event.file,
                line=event.line,
            )

        self.ask(frames.Lookup(self._interpreter.next(), request.symbol, request.module), answer)

    def bindings(self, route: int, body: bytes) -> None:
        """`ls-bindings`."""
        request = _decode_bindings(body)
        if not self._may(route, request, "vars"):
            return

        def answer(event: frames.Event | None) -> None:
            if not isinstance(event, frames.Variables):
                self._voice.refuse(route, request.id, "timeout", "ls-bindings: the interpreter does not answer")
                return
            rows = [Binding(row.name, row.type) for row in event.vars]
            self._voice.done(route, request.id, bindings=rows, count=len(rows), ns=self._interpreter.namespace)

        self.ask(frames.Vars(self._interpreter.next(), _MAX_BINDINGS), answer)

    def clear(self, route: int, body: bytes) -> None:
        """`clear-bindings`. What the names held may be slow to go, so this one is awaited."""
        request = _decode_clear(body)
        if not self._may(route, request, "clear"):
            return

        def cleared(event: frames.Event) -> None:
            assert isinstance(event, frames.Cleared)
            self._voice.done(route, request.id, count=event.count)

        self._interpreter.ask(frames.Clear(self._interpreter.next()), cleared)

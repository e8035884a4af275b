"""Name queries: completion, lookup, listing. Rejected as busy while an eval runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from replwire.deadlines import Deadlines
from replwire.ops import ClearBindings, Complete, Lookup, LsBindings, Request
from replwire.replies import Binding
from replworker.interpreter import Interpreter
from replworker.reply_sender import ReplySender
from replworker.runtimes import frames
from replworker.session_streams import SessionStreams

_REPLY_TIMEOUT_S = 2.0  # then the query is abandoned: user code hangs
_MAX_BINDINGS = 1000

_decode_complete = msgspec.json.Decoder(Complete).decode
_decode_lookup = msgspec.json.Decoder(Lookup).decode
_decode_bindings = msgspec.json.Decoder(LsBindings).decode
_decode_clear = msgspec.json.Decoder(ClearBindings).decode


class NameQueries:
    """Name queries of one interpreter."""

    def __init__(
        self, replies: ReplySender, interpreter: Interpreter, timers: Deadlines, streams: SessionStreams
    ) -> None:
        self._replies = replies
        self._interpreter = interpreter
        self._timers = timers
        self._streams = streams

    def query(
        self,
        question: frames.VarsFrame | frames.ClearFrame | frames.CompleteFrame | frames.LookupFrame,
        then: Callable[[frames.FrameEvent | None], None],
    ) -> None:
        """Send a query; `then` gets the reply, or None after a timeout."""

        def give_up(_: float) -> None:
            self._interpreter.ignore_reply(question.n)
            then(None)

        late = self._timers.call_at(time.monotonic() + _REPLY_TIMEOUT_S, give_up)

        def in_time(event: frames.FrameEvent) -> None:
            self._timers.cancel(late)
            then(event)

        self._interpreter.request(question, in_time)

    def _check_available(self, route: int, request: Request, frame: str) -> bool:
        request_id, op = request.id, request.op
        if not self._interpreter.supports(frame):
            self._replies.send_error(route, request_id, "not-supported", f"{op}: not supported by this runtime")
        elif self._streams.evals.running is not None:
            self._replies.send_error(
                route, request_id, "busy", f"{op}: the session is running an eval", retry_after_ms=1000
            )
        else:
            return True
        return False

    def handle_complete(self, route: int, body: bytes) -> None:
        """Handle `complete`; offsets are in bytes on the wire, in characters in frames."""
        request = _decode_complete(body)
        code = request.code.encode("utf-8", "surrogatepass")
        if not 0 <= request.pos <= len(code):
            self._replies.send_done(route, request.id, completions=[], start=max(0, min(request.pos, len(code))))
            return
        if not self._check_available(route, request, "complete"):
            return
        pos = len(code[: request.pos].decode("utf-8", "ignore"))

        def answer(event: frames.FrameEvent | None) -> None:
            found, start = [], pos
            if isinstance(event, frames.CompletionsFrame):
                found, start = event.items, event.start
            before = request.code[: max(0, start)].encode("utf-8", "surrogatepass")
            self._replies.send_done(route, request.id, completions=found, start=len(before))

        self.query(frames.CompleteFrame(self._interpreter.next_number(), request.code, pos, request.limit), answer)

    def handle_lookup(self, route: int, body: bytes) -> None:
        """Handle `lookup`."""
        request = _decode_lookup(body)
        if not self._check_available(route, request, "lookup"):
            return

        def answer(event: frames.FrameEvent | None) -> None:
            if not isinstance(event, frames.FoundFrame) or not event.found:
                self._replies.send_done(route, request.id, found=False)
                return
            self._replies.send_done(
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

        self.query(frames.LookupFrame(self._interpreter.next_number(), request.symbol, request.module), answer)

    def handle_list(self, route: int, body: bytes) -> None:
        """Handle `ls-bindings`."""
        request = _decode_bindings(body)
        if not self._check_available(route, request, "vars"):
            return

        def answer(event: frames.FrameEvent | None) -> None:
            if not isinstance(event, frames.VariablesFrame):
                self._replies.send_error(route, request.id, "timeout", "ls-bindings: the interpreter does not respond")
                return
            rows = [Binding(row.name, row.type) for row in event.vars]
            self._replies.send_done(route, request.id, bindings=rows, count=len(rows), ns=self._interpreter.namespace)

        self.query(frames.VarsFrame(self._interpreter.next_number(), _MAX_BINDINGS), answer)

    def handle_clear(self, route: int, body: bytes) -> None:
        """Handle `clear-bindings`. Destructors may be slow, so it has no timeout."""
        request = _decode_clear(body)
        if not self._check_available(route, request, "clear"):
            return

        def cleared(event: frames.FrameEvent) -> None:
            assert isinstance(event, frames.ClearedFrame)
            self._replies.send_done(route, request.id, count=event.count)

        self._interpreter.request(frames.ClearFrame(self._interpreter.next_number()), cleared)

"""The session inside its worker: requests in, evals driven through the interpreter, answers out.

No socket and no poll here: the loop calls in, and this calls `link.send`, the child and the timers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from replwire.deadlines import Deadlines
from replwire.limits import RETRY_AFTER_MS, Limits
from replwire.link import HEADER_BYTES, Cancel, Claim, Claimed, Gone, Header, Kind, Outcome, encode, pack
from replwire.replies import Reply
from replwire.replies import encode as encode_reply
from replwire.requests import Eval, Read, Stdin
from replworker.answers import compose
from replworker.jobs import Job, Jobs
from replworker.link import Link
from replworker.output import Background, Stream
from replworker.reads import Reads
from replworker.runtimes import frames
from replworker.runtimes.child import Child
from replworker.stdin import Input

_RESEND_S = 0.5  # code may catch the first interrupt on its way through a library; one more is sent
_ASK_INTERPRETER_S = 2.0  # then `info` is answered without variables
_MAX_VARIABLES = 200
_NEED_INPUT_MAX = 10_000  # per eval: more is an interpreter gone wild

_decode_claim = msgspec.json.Decoder(Claim).decode
_decode_cancel = msgspec.json.Decoder(Cancel).decode
_decode_eval = msgspec.json.Decoder(Eval).decode
_decode_read = msgspec.json.Decoder(Read).decode
_decode_stdin = msgspec.json.Decoder(Stdin).decode


class _Op(msgspec.Struct):
    id: str
    op: str


class _InfoAsk(msgspec.Struct):
    id: str
    variables: bool
    base: dict[str, object]


_decode_op = msgspec.json.Decoder(_Op).decode


def _plain(body: bytes) -> bytes:
    """A request with each of its keys once. Of one that came twice the broker has looked at the last value alone,
    and found it right; a decoder for a struct looks at every one."""
    return msgspec.json.encode(msgspec.json.decode(body))


class Session:
    """One worker's session, from before it is claimed to the interpreter's death."""

    def __init__(self, link: Link, child: Child, timers: Deadlines, limits: Limits) -> None:
        self._link = link
        self._child = child
        self._timers = timers
        self._limits = limits
        self._claim: Claim | None = None
        self._ready: frames.Ready | None = None
        self._epoch = 0
        self._count = 0
        self._needs = 0
        self._asked: dict[int, Callable[[frames.Event], None]] = {}
        self._started = time.monotonic()
        self._lost: str | None = None
        self._adopt(limits)

    def _adopt(self, limits: Limits) -> None:
        self._limits = limits
        self.jobs = Jobs(limits)
        self.background = Background(limits.background_bytes)
        self.input = Input(self._child, limits.max_stdin_bytes)
        self._reads = Reads(self.jobs, self.background, self._timers, limits, self._say, self._out)

    # --- to the broker ---

    def _say(self, route: int, reply: Reply, outcome: int = Outcome.NONE, before: Reply | None = None) -> None:
        """Send a reply to the client of a route; `before` is one that comes just before it."""
        first = b"" if before is None else encode_reply(before)
        body = first + encode_reply(reply)
        self._link.send(pack(Kind.SAY, body, outcome=outcome, epoch=self._epoch, route=route, first=len(first)))

    def _out(self, route: int, request_id: str, stream: Stream, text: str) -> None:
        reply = Reply(id=request_id, out=text) if stream == "out" else Reply(id=request_id, err=text)
        self._link.send(pack(Kind.OUT, encode_reply(reply), epoch=self._epoch, route=route))

    def _refuse(self, route: int, request_id: str, word: str, err: str, **more: Any) -> None:
        self._say(route, Reply(id=request_id, status=["done", "error", word], err=err, **more), Outcome.ERROR)

    def beat(self) -> None:
        """Tell the broker that this worker lives."""
        self._link.send(pack(Kind.BEAT, epoch=self._epoch))

    def gone(self, cause: str) -> None:
        """The interpreter is dead; the broker answers for whatever ran."""
        if self.jobs.running is not None:
            self._flush_decoders(self.jobs.running)
        self._link.send(pack(Kind.GONE, encode(Gone(cause)), epoch=self._epoch))

    # --- from the broker ---

    def hear(self, header: Header, frame: bytes) -> None:
        """One frame of the broker."""
        if header.kind == Kind.ASK:
            try:
                self._ask(header, frame[HEADER_BYTES:])
            except msgspec.ValidationError:
                self._ask(header, _plain(frame[HEADER_BYTES:]))
        elif header.kind == Kind.CANCEL:
            self._cancel(header.route, _decode_cancel(frame[HEADER_BYTES:]))
        elif header.kind == Kind.CLAIM:
            self._epoch = header.epoch
            self._claimed_by(_decode_claim(frame[HEADER_BYTES:]))

    def _claimed_by(self, claim: Claim) -> None:
        self._claim, self._lost = claim, claim.lost
        self._adopt(claim.limits)
        limits = {
            "value-bytes": claim.limits.max_value_bytes,
            "trace-frames": claim.limits.max_trace_frames,
            "trace-bytes": claim.limits.max_trace_bytes,
        }
        env = dict(pair.split("=", 1) for pair in claim.env)
        self._interpret(frames.Claim(self._next(), claim.cwd, env, limits), self._on_claimed)

    def _on_claimed(self, event: frames.Event) -> None:
        assert isinstance(event, frames.Claimed)
        self._link.send(pack(Kind.CLAIMED, encode(Claimed(event.error)), epoch=self._epoch))

    def _ask(self, header: Header, body: bytes) -> None:
        asked = _decode_op(body)
        op = asked.op
        if op == "eval":
            self._eval(header, _decode_eval(body))
        elif op == "read":
            self._reads.read(header.route, _decode_read(body))
        elif op == "stdin":
            self._stdin(header.route, _decode_stdin(body))
        elif op == "info":
            self._info(header.route, msgspec.json.decode(body, type=_InfoAsk))
        elif op == "clear-bindings":
            self._clear(header.route, asked.id)
        else:
            self._refuse(header.route, asked.id, "not-supported", f"{op}: not here")

    # --- evals ---

    def _eval(self, header: Header, request: Eval) -> None:
        self.drain()  # what the session printed since its last eval is not this one's
        number = self._next()
        job = self.jobs.begin(header.route, header.eval, request.id, number)
        self._needs = 0
        assert self._claim is not None
        name = f"<{self._claim.name or 'eval'}:{header.eval}>"
        ask = frames.Eval(number, request.code or "", name, request.silent, request.allow_stdin, request.store_history)
        self._interpret(ask, lambda event: self._on_eval(job, event))

    def _on_eval(self, job: Job, event: frames.Event) -> None:
        if isinstance(event, frames.NeedInput):
            self._needs += 1
            if self._needs > _NEED_INPUT_MAX:
                raise ValueError("asks for input without end")
            assert self._claim is not None
            need = Reply(id=job.request_id, status=["need-input"], eval_id=job.eval_id)
            need.session, need.name = self._claim.session, self._claim.name
            self._say(job.route, need)
            return
        assert isinstance(event, frames.Result)
        self.drain()
        self._flush_decoders(job)
        self._timers.cancel(job.resend)
        assert self._claim is not None
        ending = compose(job, event, self._claim, self._epoch, self._lost, self.background.unread)
        job.value, job.done, self._lost = ending.value, ending.done, None
        self._say(job.route, ending.done, ending.outcome, before=ending.value)
        self._reads.ended(job)
        self.jobs.end()

    def _cancel(self, route: int, cancel: Cancel) -> None:
        job = self.jobs.running
        if job is None or job.route != route:
            return
        job.cancelled = True
        job.limit_ms = cancel.limit_ms or job.limit_ms
        self._child.send(frames.encode(frames.Interrupt(job.asked)))
        self._child.interrupt()
        if job.resend is None:
            job.resend = self._timers.at(time.monotonic() + _RESEND_S, lambda _: self._child.interrupt())

    # --- output ---

    def drain(self) -> None:
        """Take what waits in the pipes now, and no more: a child that prints without end must not hold us."""
        child = self._child
        for fd in child.filled():
            if fd == child.late:
                self.late(child.waiting(fd))
            else:
                self.printed("out" if fd == child.out else "err", child.waiting(fd))

    def printed(self, stream: Stream, most: int) -> bool:
        """Read up to `most` bytes of a stream. False at its end."""
        fd = self._child.out if stream == "out" else self._child.err
        while most > 0:
            data = self._child.read(fd)
            if not data:
                return data is None
            most -= len(data)
            job = self.jobs.running
            if job is None:
                self.background.add(data)
                continue
            text = job.output.add(stream, data)
            if text:
                self._live(job, stream, text)
        return True

    def late(self, most: int) -> bool:
        """The same for what threads of earlier evals print."""
        while most > 0:
            data = self._child.read(self._child.late)
            if not data:
                return data is None
            most -= len(data)
            self.background.add(data)
        return True

    def _flush_decoders(self, job: Job) -> None:
        for piece in job.output.finish():
            self._live(job, piece.stream, piece.text)

    def _live(self, job: Job, stream: Stream, text: str) -> None:
        self._out(job.route, job.request_id, stream, text)
        for follower in job.followers:
            if follower.grep is None and follower.stream in ("both", stream):
                self._out(follower.route, follower.request_id, stream, text)

    # --- other operations ---

    def _stdin(self, route: int, request: Stdin) -> None:
        assert self._claim is not None
        if not self.input.give(request.input.encode("utf-8", "surrogatepass")):
            most = self._limits.max_stdin_bytes
            err = f"{self.input.unread()} bytes of input are unread (max-stdin-bytes = {most})"
            self._refuse(
                route, request.id, "stdin-buffer-full", err, limit="max-stdin-bytes", limit_value=most,
                retry_after_ms=RETRY_AFTER_MS,
            )  # fmt: skip
            return
        label = [self._claim.name or self._claim.session]
        running = self.jobs.running is not None
        reply = Reply(id=request.id, status=["done"], delivered=label if running else None)
        reply.buffered = None if running else label
        self._say(route, reply, Outcome.OK)

    def _info(self, route: int, request: _InfoAsk) -> None:
        info = request.base | {
            "pid": self._child.pid,
            "memory-bytes": self._child.memory_bytes(),
            "cpu-seconds": self._child.cpu_seconds(),
            "uptime-ms": round((time.monotonic() - self._started) * 1000),
            "version": self._ready.version if self._ready else None,
            "executable": self._ready.executable if self._ready else None,
            "background-bytes": self.background.unread,
            "stdin-unread-bytes": self.input.unread(),
            "variables": None,
        }

        def answer(event: frames.Event | None) -> None:
            if isinstance(event, frames.Variables):
                info["variables"] = msgspec.to_builtins(event.vars)
                info["variables-total"] = event.total
            self._say(route, Reply(id=request.id, status=["done"], info=info), Outcome.OK)

        if not request.variables or self.jobs.running is not None:
            answer(None)
            return
        number = self._next()
        late = self._timers.at(time.monotonic() + _ASK_INTERPRETER_S, lambda _: self._give_up(number, answer))

        def in_time(event: frames.Event) -> None:
            self._timers.cancel(late)
            answer(event)

        self._interpret(frames.Vars(number, _MAX_VARIABLES), in_time)

    def _give_up(self, number: int, answer: Callable[[frames.Event | None], None]) -> None:
        self._asked[number] = lambda _: None  # it may still come
        answer(None)

    def _clear(self, route: int, request_id: str) -> None:
        def cleared(event: frames.Event) -> None:
            assert isinstance(event, frames.Cleared)
            self._say(route, Reply(id=request_id, status=["done"], count=event.count), Outcome.OK)

        self._interpret(frames.Clear(self._next()), cleared)

    # --- the interpreter ---

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _interpret(
        self, ask: frames.Claim | frames.Eval | frames.Vars | frames.Clear, then: Callable[[frames.Event], None]
    ) -> None:
        self._asked[ask.n] = then
        self._child.send(frames.encode(ask))

    def interpreter_said(self, body: bytes) -> None:
        """One frame of the interpreter. Raises ValueError or msgspec's error for one that may not be said now."""
        event = frames.decode(body)
        if isinstance(event, frames.Ready):
            if self._ready is not None:
                raise ValueError("said ready twice")
            self._ready = event
            self._link.send(pack(Kind.READY))
            return
        then = self._asked.get(event.n)
        if then is None:
            raise ValueError("answered what was not asked")
        if not isinstance(event, frames.NeedInput):
            del self._asked[event.n]
        then(event)

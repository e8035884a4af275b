"""Streams of a session: the interpreter's pipes, the output log of the running eval, background output, stdin."""

from __future__ import annotations

from replwire.limits import Limits
from replworker.evals import EvalRecord, EvalStore
from replworker.output import BackgroundOutput, Stream
from replworker.reply_sender import ReplySender
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.stdin import StdinBuffer


class SessionStreams:
    """Reads the pipes into the running eval's log, or into the background output, and forwards live output."""

    def __init__(self, process: InterpreterProcess, replies: ReplySender, limits: Limits) -> None:
        self._process = process
        self._replies = replies
        self.apply_limits(limits)

    def apply_limits(self, limits: Limits) -> None:
        """Start over with the limits of an assignment."""
        self.limits = limits
        self.evals = EvalStore(limits)
        self.background = BackgroundOutput(limits.background_bytes)
        self.stdin = StdinBuffer(self._process, limits.max_stdin_bytes)

    def clear_stdin(self) -> None:
        """Drop input that the interpreter has not read: another has taken its place."""
        self.stdin = StdinBuffer(self._process, self.limits.max_stdin_bytes)

    def drain(self) -> None:
        """Read what is in the pipes now and no more: endless output must not block the worker."""
        process = self._process
        for fd in process.readable_pipes():
            if fd == process.background:
                self.read_background(process.unread_bytes(fd))
            else:
                self.read_stream("out" if fd == process.out else "err", process.unread_bytes(fd))

    def read_stream(self, stream: Stream, most: int) -> bool:
        """Read up to `most` bytes of a stream. Return False at its end."""
        fd = self._process.out if stream == "out" else self._process.err
        while most > 0:
            data = self._process.read(fd)
            if not data:
                return data is None
            most -= len(data)
            self.add_output(stream, data)
        return True

    def add_output(self, stream: Stream, data: bytes) -> None:
        """Take output for the running eval, else background output."""
        record = self.evals.running
        if record is None:
            self.background.add(data)
        elif text := record.output.add(stream, data):
            self._forward_output(record, stream, text)

    def read_background(self, most: int) -> bool:
        """Read up to `most` bytes of background output. Return False at its end."""
        while most > 0:
            data = self._process.read(self._process.background)
            if not data:
                return data is None
            most -= len(data)
            self.background.add(data)
        return True

    def finish_output(self, record: EvalRecord) -> None:
        """Forward text held back because its last character was incomplete."""
        for piece in record.output.finish():
            self._forward_output(record, piece.stream, piece.text)

    def _forward_output(self, record: EvalRecord, stream: Stream, text: str) -> None:
        self._replies.send_output(record.route, record.request_id, stream, text)
        for waiter in record.waiters:
            if waiter.grep is None and waiter.stream in ("both", stream):
                self._replies.send_output(waiter.route, waiter.request_id, stream, text)

"""Input of the session's code, bounded and kept until it is read."""

from __future__ import annotations

from replworker.runtimes.interpreter_process import InterpreterProcess


class StdinBuffer:
    """Unread input, partly here and partly in the pipe; bounded in total."""

    def __init__(self, process: InterpreterProcess, limit: int) -> None:
        self._process = process
        self._limit = limit
        self._pending = bytearray()

    def unread_bytes(self) -> int:
        """Return the number of bytes not read yet."""
        return len(self._pending) + self._process.unread_bytes(self._process.stdin)

    def offer(self, data: bytes) -> bool:
        """Take all of the data, or none of it and return False."""
        if self.unread_bytes() + len(data) > self._limit:
            return False
        self._pending += data
        self.flush()
        return True

    def flush(self) -> None:
        """Write to the pipe as far as possible."""
        while self._pending:
            try:
                sent = self._process.write_stdin(self._pending)
            except BrokenPipeError:  # user code closed its stdin
                self._pending.clear()
                return
            if not sent:
                return
            del self._pending[:sent]

    @property
    def has_pending(self) -> bool:
        """True if `flush` has work."""
        return bool(self._pending)

"""Input of the session's code, bounded and kept until it is read."""

from __future__ import annotations

from replworker.runtimes.interpreter_process import InterpreterProcess


class StdinBuffer:
    """Unread input, partly here and partly in the pipe; bounded in total."""

    def __init__(self, child: InterpreterProcess, limit: int) -> None:
        self._child = child
        self._limit = limit
        self._held = bytearray()

    def unread_bytes(self) -> int:
        """Return the number of bytes not read yet."""
        return len(self._held) + self._child.unread_bytes(self._child.stdin)

    def offer(self, data: bytes) -> bool:
        """Take all of the data, or none of it and return False."""
        if self.unread_bytes() + len(data) > self._limit:
            return False
        self._held += data
        self.flush()
        return True

    def flush(self) -> None:
        """Write to the pipe as far as possible."""
        while self._held:
            try:
                sent = self._child.write_stdin(self._held)
            except BrokenPipeError:  # user code closed its stdin
                self._held.clear()
                return
            if not sent:
                return
            del self._held[:sent]

    @property
    def has_pending(self) -> bool:
        """True if `flush` has work."""
        return bool(self._held)

"""Input for the session's code: given at any time, bounded, kept until it is read."""

from __future__ import annotations

from replworker.runtimes.interpreter_process import InterpreterProcess


class StdinBuffer:
    """What the code has not read yet is partly here and partly in the pipe; together it is bounded."""

    def __init__(self, child: InterpreterProcess, limit: int) -> None:
        self._child = child
        self._limit = limit
        self._held = bytearray()

    def unread_bytes(self) -> int:
        """Bytes given and not read."""
        return len(self._held) + self._child.unread_bytes(self._child.stdin)

    def offer(self, data: bytes) -> bool:
        """Take all of it, or nothing and return False."""
        if self.unread_bytes() + len(data) > self._limit:
            return False
        self._held += data
        self.flush()
        return True

    def flush(self) -> None:
        """Write to the pipe what goes."""
        while self._held:
            try:
                sent = self._child.write_stdin(self._held)
            except BrokenPipeError:  # the code closed its stdin: nobody will ever read this
                self._held.clear()
                return
            if not sent:
                return
            del self._held[:sent]

    @property
    def has_pending(self) -> bool:
        """Whether `flush` has work."""
        return bool(self._held)

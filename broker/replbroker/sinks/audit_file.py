"""The audit file: one JSON line for each request, written after the replies in batches, and rotated once by size."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from replbroker.core.effects import Audit
from replbroker.sinks.refusal_throttle import AuditRecord, RefusalThrottle

_FLUSH_DELAY_S = 0.05  # how long a line may wait to be written
_MAX_PENDING_BYTES = 512 * 1024  # with more waiting, lines are written at once
_encode = msgspec.json.Encoder().encode
_log = logging.getLogger(__name__)


class AuditFile:
    """Writer of the audit. A line that cannot be written is lost and counted; the audit never stops the broker.

    Args:
        path: The file; None for no audit.
        max_bytes: Size at which the file is rotated.
        monotonic_to_unix: Returns the Unix time of monotonic zero.

    Attributes:
        lost_lines: Lines that could not be written.
    """

    def __init__(self, path: Path | None, max_bytes: int, monotonic_to_unix: Callable[[], float]) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._monotonic_to_unix = monotonic_to_unix
        self._pending: list[bytes] = []
        self._bytes = 0
        self._fd = -1
        self._size = 0
        self._is_failing = False
        self._ends_mid_line = False
        self.lost_lines = 0
        self._throttle = RefusalThrottle()
        self._write_at: float | None = None

    @property
    def due(self) -> float | None:
        """Monotonic time at which `flush` should be called."""
        both = [at for at in (self._write_at, self._throttle.due) if at is not None]
        return min(both) if both else None

    def write(self, audit: Audit, client: str) -> None:
        """Add the record of a request.

        Args:
            audit: What the core reports.
            client: Description of the client's connection.
        """
        if self._path is None:
            return
        record = {
            "time": round(self._monotonic_to_unix() + audit.when, 3),
            "client": client,
            "identity": audit.identity,
            "agent": audit.agent,
            "op": audit.op,
            "session": audit.session,
            "id": audit.request_id,
            "outcome": audit.outcome,
            "err": audit.err,
            "latency-ms": audit.latency_ms,
        }
        if (traffic := audit.traffic) is not None:
            record |= {"host": traffic.host, "port": traffic.port, "connections": traffic.count}
            record |= {"sent-bytes": traffic.sent, "received-bytes": traffic.received}
        if audit.repeated > 1:
            record["repeated"] = audit.repeated
        self._add(record, audit.when)

    def write_rejected(self, address: str, now: float) -> None:
        """Add a record for a client at this address whose key is not authorized."""
        if self._path is not None:
            empty = dict.fromkeys(("identity", "agent", "op", "session", "id"))
            time = round(self._monotonic_to_unix() + now, 3)
            first = {"time": time, "client": f"tcp:{address}", "outcome": "unauthorized"}
            self._add({**first, **empty, "err": "no key that is let in", "latency-ms": 0.0}, now)

    def _add(self, record: AuditRecord, when: float) -> None:
        if self._throttle.admit(record, when):
            self._append_line(record, when)

    def _append_line(self, record: AuditRecord, when: float) -> None:
        line = _encode(record) + b"\n"
        self._pending.append(line)
        self._bytes += len(line)
        if self._write_at is None or self._bytes > _MAX_PENDING_BYTES:
            self._write_at = when + (0 if self._bytes > _MAX_PENDING_BYTES else _FLUSH_DELAY_S)

    def flush(self, now: float) -> None:
        """Write the lines that wait, if it is time."""
        due = self.due
        if due is None or due > now:
            return
        for record in self._throttle.take_summaries(now):
            self._append_line(record, now)
        if self._write_at is not None and self._write_at <= now:
            self._flush()

    def _flush(self) -> None:
        lines, self._pending, self._bytes, self._write_at = self._pending, [], 0, None
        data = b"".join(lines)
        try:
            self._open_for(len(data))
            data = b"\n" * self._ends_mid_line + data
            written = os.write(self._fd, data)
            self._size += written
            self._ends_mid_line = written < len(data)
            if self._ends_mid_line:
                raise OSError("short write")
            self._is_failing = False
        except OSError as error:
            self.lost_lines += len(lines)
            if not self._is_failing:
                _log.warning("the audit cannot be written: %s", error.strerror or error)
            self._is_failing = True

    def _open_for(self, length: int) -> None:
        """Open the file, rotated if so many more bytes do not fit."""
        assert self._path is not None
        if self._fd >= 0 and not os.fstat(self._fd).st_nlink:  # the file was deleted
            self._close_file()
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._fd).st_size
        if self._size and self._size + length > self._max_bytes:
            os.replace(self._path, f"{self._path}.1")
            self._close_file()
            self._open_for(0)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Write the lines that wait, and close the file."""
        for record in self._throttle.take_summaries(math.inf):
            self._append_line(record, 0.0)
        if self._pending:
            self._flush()
        self._close_file()

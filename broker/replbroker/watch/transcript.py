"""Writes sessions' transcripts behind the answers: the loop hands bundles of events to one thread, which may wait for
a disk as long as it likes.

What cannot be written is lost and counted, and the log is told once: no transcript may stop or slow a broker.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from replbroker.core.effects import Happened
from replbroker.watch.base import Drop, NoTranscript, Register, SessionBackend, head_of
from replwire.events import BROKER

_PAUSE_S = 0.05  # how long an event may wait to be handed over
_MOST_PENDING = 16 * 1024 * 1024  # bytes between the loop and the disk; what comes beyond it is lost
_PRUNE_S = 600.0
_CLOSE_S = 5.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_Batch = dict[str, list[bytes]]


class Transcript:
    """A watcher. `complain` takes one line for the log; it is called in the loop. `bounds` are those of `prune`:
    seconds of age and bytes."""

    def __init__(
        self, backend: SessionBackend, max_age_s: float, max_bytes: int, complain: Callable[[str], None]
    ) -> None:
        self._backend = backend
        self._max_age_s = max_age_s
        self._max_bytes = max_bytes
        self._complain = complain
        self._batch: _Batch = {}
        self._queue: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # over the counters that both sides change
        self._pending = 0
        self._trouble: str | None = None
        self._told = False
        self.lost = 0
        self.written = 0
        self.due: float | None = None

    def watch(self, register: Register, drop: Drop) -> None:
        """Nothing to poll."""

    def happened(self, event: Happened, now: float) -> None:
        """Take one in."""
        if event.book is None:
            return
        if self._pending > _MOST_PENDING:
            with self._lock:
                self.lost += 1
            return
        self._batch.setdefault(event.book, []).append(event.body)
        with self._lock:
            self._pending += len(event.body)
        if self.due is None:
            self.due = now + _PAUSE_S

    def flush(self, now: float) -> None:
        """Hand over what has come, if it is time; pass on what the thread has to complain about."""
        if self.due is None or now < self.due:
            return
        self._hand_over()
        if self._trouble is not None and not self._told:
            self._complain(f"transcripts cannot be written: {self._trouble}")
        self._told = self._trouble is not None

    def _hand_over(self) -> None:
        self.due = None
        if not self._batch:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="transcripts", daemon=True)
            self._thread.start()
        batch, self._batch = self._batch, {}
        self._queue.put(batch)

    def snapshot(self) -> dict[str, Any]:
        """For `introspect`."""
        return {"written": self.written, "lost": self.lost, "pending-bytes": self._pending, "trouble": self._trouble}

    def close(self) -> None:
        """Write what waits, at most so long."""
        self._hand_over()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_CLOSE_S)

    # --- the thread ---

    def _run(self) -> None:
        pruned = 0.0
        while (batch := self._queue.get()) is not None:
            for book, entries in batch.items():
                self._write(book, entries)
            if time.monotonic() - pruned > _PRUNE_S or not pruned:
                pruned = time.monotonic()
                self._prune()
        self._backend.shut()

    def _write(self, book: str, entries: list[bytes]) -> None:
        try:
            self._append(book, entries)
            trouble, lost = None, 0
        except (OSError, NoTranscript) as error:
            trouble, lost = str(error), len(entries)
        except Exception as error:  # noqa: BLE001 - the thread must live: the next session's may go well
            trouble, lost = f"{type(error).__name__}: {error}", len(entries)
        with self._lock:
            self._pending -= sum(map(len, entries))
            self.lost += lost
            self.written += len(entries) - lost
            self._trouble = trouble
        if entries and b'"type":"session/closed"' in entries[-1][:40]:
            self._backend.close(book)

    def _append(self, book: str, entries: list[bytes]) -> None:
        self._backend.open(head_of(book, _decode(entries[0])))
        self._backend.append(book, entries)

    def _prune(self) -> None:
        try:
            self._backend.prune(time.time() - self._max_age_s, self._max_bytes, frozenset({BROKER}))
        except (OSError, NoTranscript) as error:
            self._trouble = str(error)

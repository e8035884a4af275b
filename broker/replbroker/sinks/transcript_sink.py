"""Writes sessions' transcripts behind the answers, in a thread that may wait for a disk as long as it likes.

What cannot be written is lost and counted, and the log is told once: no transcript may stop or slow a broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from replbroker.core.effects import PublishEvent
from replbroker.sinks.background_writer import BackgroundWriter, Batch
from replbroker.sinks.event_sink import (
    NoTranscript,
    Register,
    TranscriptBackend,
    TranscriptInfo,
    Unregister,
    info_from_entry,
)
from replwire.events import BROKER

_BATCH_DELAY_S = 0.05  # how long an event may wait to be handed over
_PRUNE_INTERVAL_S = 600.0
_CLOSE_TIMEOUT_S = 5.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class TranscriptSink:
    """A watcher. `complain` takes one line for the log; it is called in the loop. `bounds` are those of `prune`:
    seconds of age and bytes."""

    def __init__(
        self, backend: TranscriptBackend, max_age_s: float, max_bytes: int, warn: Callable[[str], None]
    ) -> None:
        self._backend = backend
        self._max_age_s = max_age_s
        self._max_bytes = max_bytes
        self._warn = warn
        self._writer = BackgroundWriter(
            "transcripts", self._process_batch, backend.shut, delay_s=_BATCH_DELAY_S, close_timeout_s=_CLOSE_TIMEOUT_S
        )
        self._errors: dict[str, str] = {}  # the thread's: why this transcript could not be written last
        self._unlogged_error: str | None = None  # for the log: what goes well meanwhile does not take it away
        self._pruned_at: float | None = None
        self._unwritten_events = 0
        self._infos: dict[str, TranscriptInfo] = {}  # of sessions that live: the entry that tells may be lost
        self.written_events = 0

    @property
    def due(self) -> float | None:
        """When `flush` is wanted."""
        return self._writer.due

    @property
    def lost_events(self) -> int:
        """Events that are in no transcript and should be."""
        return self._writer.lost_events + self._unwritten_events

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:
        """Nothing to poll."""

    def on_event(self, event: PublishEvent, now: float) -> None:
        """Take one in."""
        if event.transcript_id is not None:
            self._writer.put(event, now)

    def flush(self, now: float) -> None:
        """Hand over what has come, if it is time; pass on what the thread has to complain about."""
        if self._writer.flush(now) and self._unlogged_error is not None:
            untold, self._unlogged_error = self._unlogged_error, None
            self._warn(f"transcripts cannot be written: {untold}")

    def snapshot(self) -> dict[str, Any]:
        """For `introspect`."""
        return {
            "written": self.written_events,
            "lost": self.lost_events,
            "pending-bytes": self._writer.pending_bytes,
            "trouble": next(iter(self._errors.copy().values()), None),
        }

    def close(self) -> None:
        """Write what waits, at most so long."""
        self._writer.close()

    # --- the thread ---

    def _process_batch(self, bundle: Batch) -> None:
        books: dict[str, list[bytes]] = {}
        for event in bundle:
            books.setdefault(event.transcript_id or BROKER, []).append(event.body)
        for book, entries in books.items():
            self._write(book, entries)
        now = time.monotonic()
        if self._pruned_at is None or now - self._pruned_at > _PRUNE_INTERVAL_S:
            self._pruned_at = now
            self._prune()

    def _write(self, book: str, entries: list[bytes]) -> None:
        try:
            self._append(book, entries)
        except (OSError, NoTranscript) as error:
            self._on_failure(book, str(error))
            self._unwritten_events += len(entries)
        except Exception as error:  # noqa: BLE001 - the thread must live: the next session's may go well
            self._on_failure(book, f"{type(error).__name__}: {error}")
            self._unwritten_events += len(entries)
        else:
            self._errors.pop(book, None)
            self.written_events += len(entries)
        if _includes_session_end(entries):
            self._errors.pop(book, None)

    def _on_failure(self, book: str, why: str) -> None:
        """The log is told of the first of several that cannot be written."""
        if not self._errors:
            self._unlogged_error = why
        self._errors[book] = why

    def _append(self, book: str, entries: list[bytes]) -> None:
        first = _decode(entries[0])
        if first["type"] == "session/created":
            self._infos[book] = info_from_entry(book, first)
        ends = _includes_session_end(entries)
        head = (self._infos.pop if ends else self._infos.get)(book, info_from_entry(book, first))
        self._backend.open(head)
        self._backend.append(book, entries)
        if ends:
            self._backend.close(book)

    def _prune(self) -> None:
        try:
            self._backend.prune(time.time() - self._max_age_s, self._max_bytes, frozenset({BROKER}))
        except (OSError, NoTranscript) as error:
            self._on_failure(BROKER, str(error))


def _includes_session_end(entries: list[bytes]) -> bool:
    """Whether a session's last event is among them."""
    return b'"type":"session/closed"' in entries[-1][:40]

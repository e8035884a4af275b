"""Writes sessions' transcripts after the replies, in a thread that may wait for a disk as long as it likes.

Entries that cannot be written are lost and counted, and the log says so once; a transcript never stops or slows the
broker.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from replbroker.core.effects import PublishEvent
from replbroker.sinks.background_writer import BackgroundWriter, Batch
from replbroker.sinks.transcript_backend import NoTranscript, TranscriptBackend, TranscriptInfo, info_from_entry
from replwire.events import BROKER

_BATCH_DELAY_S = 0.05  # how long an event may wait to be handed over
_LOG_INTERVAL_S = 60.0  # between two errors, for the later one to be logged
_PRUNE_INTERVAL_S = 600.0
_CLOSE_TIMEOUT_S = 5.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_log = logging.getLogger(__name__)


class TranscriptSink:
    """Event sink that writes transcripts.

    Args:
        backend: The storage.
        max_age_s: Age in seconds after which a transcript is deleted.
        max_bytes: Bound on all transcripts, in bytes.

    Attributes:
        written_events: Events that were written.
    """

    def __init__(self, backend: TranscriptBackend, max_age_s: float, max_bytes: int) -> None:
        self._backend = backend
        self._max_age_s = max_age_s
        self._max_bytes = max_bytes
        self._writer = BackgroundWriter(
            "transcripts",
            self._process_batch,
            backend.close_all,
            delay_s=_BATCH_DELAY_S,
            close_timeout_s=_CLOSE_TIMEOUT_S,
        )
        self._errors: dict[str, str] = {}  # the thread's: the last error of each transcript that fails
        self._unlogged_error: str | None = None  # kept when writing succeeds in between
        self._failed_at: float | None = None
        self._pruned_at: float | None = None
        self._unwritten_events = 0
        self._infos: dict[str, TranscriptInfo] = {}  # of live sessions: the entry that has it may be lost
        self.written_events = 0

    @property
    def due(self) -> float | None:
        """Monotonic time at which `flush` should be called."""
        return self._writer.due

    @property
    def lost_events(self) -> int:
        """Events that are missing from their transcripts."""
        return self._writer.lost_events + self._unwritten_events

    def on_event(self, event: PublishEvent, now: float) -> None:
        """Take an event that belongs into a transcript."""
        if event.transcript_id is not None:
            self._writer.put(event, now)

    def flush(self, now: float) -> None:
        """Hand over the batch, if it is time, and log the thread's errors."""
        if self._writer.flush(now) and self._unlogged_error is not None:
            error, self._unlogged_error = self._unlogged_error, None
            _log.warning("transcripts cannot be written: %s", error)

    def snapshot(self) -> dict[str, Any]:
        """Return counters for `introspect`."""
        return {
            "written": self.written_events,
            "lost": self.lost_events,
            "pending-bytes": self._writer.pending_bytes,
            "last-error": next(iter(self._errors.copy().values()), None),
        }

    def close(self) -> None:
        """Write what waits, within the time-out."""
        self._writer.close()

    # --- the thread ---

    def _process_batch(self, batch: Batch) -> None:
        by_transcript: dict[str, list[bytes]] = {}
        for event in batch:
            by_transcript.setdefault(event.transcript_id or BROKER, []).append(event.body)
        for transcript_id, entries in by_transcript.items():
            self._write(transcript_id, entries)
        now = time.monotonic()
        if self._pruned_at is None or now - self._pruned_at > _PRUNE_INTERVAL_S:
            self._pruned_at = now
            self._prune()

    def _write(self, transcript_id: str, entries: list[bytes]) -> None:
        try:
            self._append(transcript_id, entries)
        except (OSError, NoTranscript) as error:
            self._on_failure(transcript_id, str(error))
            self._unwritten_events += len(entries)
        except Exception as error:  # noqa: BLE001 - the thread has to live: the next transcript may work
            self._on_failure(transcript_id, f"{type(error).__name__}: {error}")
            self._unwritten_events += len(entries)
        else:
            self._errors.pop(transcript_id, None)
            self.written_events += len(entries)
        if _includes_session_end(entries):
            self._errors.pop(transcript_id, None)

    def _on_failure(self, transcript_id: str, reason: str) -> None:
        """Note an error; of several that follow each other closely, the log gets the first.

        On a full disk small entries are still written between large ones that are not.
        """
        now = time.monotonic()
        if not self._errors and (self._failed_at is None or now - self._failed_at > _LOG_INTERVAL_S):
            self._unlogged_error = reason
        self._errors[transcript_id], self._failed_at = reason, now

    def _append(self, transcript_id: str, entries: list[bytes]) -> None:
        first = _decode(entries[0])
        if first["type"] == "session/created":
            self._infos[transcript_id] = info_from_entry(transcript_id, first)
        is_last = _includes_session_end(entries)
        info = (self._infos.pop if is_last else self._infos.get)(transcript_id, info_from_entry(transcript_id, first))
        self._backend.open(info)
        self._backend.append(transcript_id, entries)
        if is_last:
            self._backend.close(transcript_id)

    def _prune(self) -> None:
        try:
            self._backend.prune(time.time() - self._max_age_s, self._max_bytes, frozenset({BROKER}))
        except (OSError, NoTranscript) as error:
            self._on_failure(BROKER, str(error))


def _includes_session_end(entries: list[bytes]) -> bool:
    return b'"type":"session/closed"' in entries[-1][:40]

"""Writes sessions' transcripts behind the answers, in a thread that may wait for a disk as long as it likes.

What cannot be written is lost and counted, and the log is told once: no transcript may stop or slow a broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from replbroker.core.effects import Happened
from replbroker.watch.base import Drop, Head, NoTranscript, Register, SessionBackend, head_of
from replbroker.watch.behind import Behind, Bundle
from replwire.events import BROKER

_PAUSE_S = 0.05  # how long an event may wait to be handed over
_PRUNE_S = 600.0
_CLOSE_S = 5.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode


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
        self._behind = Behind("transcripts", self._work, backend.shut, pause_s=_PAUSE_S, patience_s=_CLOSE_S)
        self._trouble: str | None = None
        self._told = False
        self._pruned: float | None = None
        self._unwritten = 0
        self._heads: dict[str, Head] = {}  # of sessions that live: the entry that tells may be lost
        self.written = 0

    @property
    def due(self) -> float | None:
        """When `flush` is wanted."""
        return self._behind.due

    @property
    def lost(self) -> int:
        """Events that are in no transcript and should be."""
        return self._behind.lost + self._unwritten

    def watch(self, register: Register, drop: Drop) -> None:
        """Nothing to poll."""

    def happened(self, event: Happened, now: float) -> None:
        """Take one in."""
        if event.book is not None:
            self._behind.take(event, now)

    def flush(self, now: float) -> None:
        """Hand over what has come, if it is time; pass on what the thread has to complain about."""
        if not self._behind.flush(now):
            return
        if self._trouble is not None and not self._told:
            self._complain(f"transcripts cannot be written: {self._trouble}")
        self._told = self._trouble is not None

    def snapshot(self) -> dict[str, Any]:
        """For `introspect`."""
        return {
            "written": self.written, "lost": self.lost, "pending-bytes": self._behind.pending, "trouble": self._trouble,
        }  # fmt: skip

    def close(self) -> None:
        """Write what waits, at most so long."""
        self._behind.close()

    # --- the thread ---

    def _work(self, bundle: Bundle) -> None:
        books: dict[str, list[bytes]] = {}
        for event in bundle:
            books.setdefault(event.book or BROKER, []).append(event.body)
        for book, entries in books.items():
            self._write(book, entries)
        now = time.monotonic()
        if self._pruned is None or now - self._pruned > _PRUNE_S:
            self._pruned = now
            self._prune()

    def _write(self, book: str, entries: list[bytes]) -> None:
        try:
            self._append(book, entries)
            trouble, lost = None, 0
        except (OSError, NoTranscript) as error:
            trouble, lost = str(error), len(entries)
        except Exception as error:  # noqa: BLE001 - the thread must live: the next session's may go well
            trouble, lost = f"{type(error).__name__}: {error}", len(entries)
        self._unwritten += lost
        self.written += len(entries) - lost
        self._trouble = trouble

    def _append(self, book: str, entries: list[bytes]) -> None:
        first = _decode(entries[0])
        if first["type"] == "session/created":
            self._heads[book] = head_of(book, first)
        ends = b'"type":"session/closed"' in entries[-1][:40]
        head = (self._heads.pop if ends else self._heads.get)(book, head_of(book, first))
        self._backend.open(head)
        self._backend.append(book, entries)
        if ends:
            self._backend.close(book)

    def _prune(self) -> None:
        try:
            self._backend.prune(time.time() - self._max_age_s, self._max_bytes, frozenset({BROKER}))
        except (OSError, NoTranscript) as error:
            self._trouble = str(error)

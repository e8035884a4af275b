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
        self._troubles: dict[str, str] = {}  # the thread's: why this transcript could not be written last
        self._untold: str | None = None  # for the log: what goes well meanwhile does not take it away
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
        if self._behind.flush(now) and self._untold is not None:
            untold, self._untold = self._untold, None
            self._complain(f"transcripts cannot be written: {untold}")

    def snapshot(self) -> dict[str, Any]:
        """For `introspect`."""
        return {
            "written": self.written,
            "lost": self.lost,
            "pending-bytes": self._behind.pending,
            "trouble": next(iter(self._troubles.copy().values()), None),
        }

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
        except (OSError, NoTranscript) as error:
            self._failed(book, str(error))
            self._unwritten += len(entries)
        except Exception as error:  # noqa: BLE001 - the thread must live: the next session's may go well
            self._failed(book, f"{type(error).__name__}: {error}")
            self._unwritten += len(entries)
        else:
            self._troubles.pop(book, None)
            self.written += len(entries)
        if _ends(entries):
            self._troubles.pop(book, None)

    def _failed(self, book: str, why: str) -> None:
        """The log is told of the first of several that cannot be written."""
        if not self._troubles:
            self._untold = why
        self._troubles[book] = why

    def _append(self, book: str, entries: list[bytes]) -> None:
        first = _decode(entries[0])
        if first["type"] == "session/created":
            self._heads[book] = head_of(book, first)
        ends = _ends(entries)
        head = (self._heads.pop if ends else self._heads.get)(book, head_of(book, first))
        self._backend.open(head)
        self._backend.append(book, entries)
        if ends:
            self._backend.close(book)

    def _prune(self) -> None:
        try:
            self._backend.prune(time.time() - self._max_age_s, self._max_bytes, frozenset({BROKER}))
        except (OSError, NoTranscript) as error:
            self._failed(BROKER, str(error))


def _ends(entries: list[bytes]) -> bool:
    """Whether a session's last event is among them."""
    return b'"type":"session/closed"' in entries[-1][:40]

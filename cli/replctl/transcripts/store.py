"""Transcripts of this user in either storage. The only module that knows where the broker keeps them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from replbroker.sinks.jsonl_backend import JsonlBackend
from replbroker.sinks.transcript_backend import CorruptEntry, Entry, TranscriptBackend, TranscriptInfo, header_entry
from replwire.events import BROKER
from replwire.paths import state_dir

__all__ = ["CorruptEntry", "Entry", "TranscriptInfo", "TranscriptReader", "header_entry"]

_NO_BOUND = 1 << 40  # read-only: no size limit


class TranscriptReader:
    """Both kinds of storage as one, so a changed setting hides no earlier transcript."""

    def __init__(self, directory: Path | None = None) -> None:
        directory = directory or Path(state_dir(os.environ)) / "transcripts"
        self._backends: list[TranscriptBackend] = [JsonlBackend(directory, _NO_BOUND)]
        if (directory / "transcripts.db").exists():
            from replbroker.sinks.sqlite_backend import SqliteBackend  # rarely used

            self._backends.append(SqliteBackend(directory, _NO_BOUND))

    def heads(self, name: str | None = None) -> list[TranscriptInfo]:
        """Return transcripts of sessions with this name or id, or all; newest first."""
        found = [head for each in self._backends for head in (each.list() if name is None else each.find(name))]
        return sorted((head for head in found if head.session != BROKER), key=lambda head: head.updated, reverse=True)

    def load(self, head: TranscriptInfo) -> Iterator[Entry]:
        """Yield the entries of a transcript."""
        for each in self._backends:
            if each.get(head.session) is not None:
                yield from each.load(head.session)

    def search(self, text: str, head: TranscriptInfo | None = None) -> Iterator[Entry]:
        """Yield entries of one transcript, or of all, with this text in code, output, value or error."""
        for each in self._backends:
            yield from each.search(text, None if head is None else head.session)

    def remove(self, head: TranscriptInfo) -> bool:
        """Delete a transcript and return True, or False if an open session writes it."""
        return all(each.remove(head.session) for each in self._backends if each.get(head.session) is not None)

    def close(self) -> None:
        """Release the files."""
        for each in self._backends:
            each.close_all()

"""Interface of transcript storage, and what its implementations share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

Entry = dict[str, Any]


class TranscriptInfo(NamedTuple):
    """Description of a transcript, known without reading the entries.

    Attributes:
        session: Id of the session.
        name: Name of the session, if it has one.
        runtime: The session's runtime.
        created: ISO 8601 time of the session's start.
        updated: Unix time of the last append, in seconds.
        bytes: Size in bytes.
    """

    session: str
    name: str | None
    runtime: str
    created: str
    updated: float = 0.0
    bytes: int = 0

    @property
    def label(self) -> str:
        """The session's name, or its id."""
        return self.name or self.session


HEADER = "transcript/header"


def header_entry(info: TranscriptInfo) -> Entry:
    """Build the first line of a transcript in JSON lines."""
    return {
        "type": HEADER,
        "v": 1,
        "session": info.session,
        "name": info.name,
        "runtime": info.runtime,
        "created": info.created,
    }


class NoTranscript(LookupError):
    """The session has no transcript."""


class TranscriptExists(ValueError):
    """The session has a transcript already."""


class CorruptEntry(ValueError):
    """An entry cannot be read, and reading was to be strict."""


class TranscriptBackend(Protocol):
    """Storage of transcripts.

    Entries are events as the bus built them. Only entries are read back: that a session's variables are restored is
    never implied. Every method works on exact session ids, and raises OSError when the storage cannot be read or
    written.
    """

    def create(self, info: TranscriptInfo) -> None:
        """Create a transcript durably. Raises TranscriptExists."""

    def open(self, info: TranscriptInfo) -> None:
        """Prepare a transcript for `append`; create it if it is missing."""

    def open_existing(self, session: str) -> TranscriptInfo:
        """Prepare an existing transcript for `append`. Raises NoTranscript."""

    def append(self, session: str, entries: Sequence[bytes]) -> None:
        """Append all entries, or none and raise OSError. Raises NoTranscript for a transcript that is not open."""

    def close(self, session: str) -> None:
        """Release what `open` acquired."""

    def load(self, session: str, *, strict: bool = False) -> Iterator[Entry]:
        """Yield all entries, the oldest first.

        Entries that are incomplete or not JSON are skipped, or raise CorruptEntry when `strict`.
        """

    def entries_since(self, session: str, seq: int) -> Iterator[Entry]:
        """Yield the entries with a higher sequence number."""

    def get(self, session: str) -> TranscriptInfo | None:
        """Return the description of a transcript, None when there is none."""

    def find(self, name: str) -> Sequence[TranscriptInfo]:
        """Return the transcripts of sessions that had this name or id, the newest first."""

    def list(self) -> Sequence[TranscriptInfo]:
        """Return all transcripts, the newest first."""

    def latest(self) -> TranscriptInfo | None:
        """Return the transcript that was appended to last."""

    def lock(self, session: str) -> Callable[[], None] | None:
        """Lock a transcript against appends by others.

        Returns:
            A function that unlocks it, or None when another process has locked it.
        """

    def search(self, text: str, session: str | None = None) -> Iterator[Entry]:
        """Yield the entries whose code, output, value or error contains this text, ignoring case."""

    def remove(self, session: str) -> bool:
        """Delete a transcript and return True, or False if another process writes it. Raises NoTranscript."""

    def prune(self, oldest: float, most_bytes: int, keep: frozenset[str]) -> int:
        """Delete old transcripts.

        Args:
            oldest: Unix time in seconds; transcripts that were not appended to since are deleted.
            most_bytes: Bound on the rest; the oldest transcripts beyond it are deleted.
            keep: Sessions whose transcripts stay.

        Returns:
            How many transcripts were deleted.
        """

    def close_all(self) -> None:
        """Release everything."""


SEARCHED_FIELDS = ("code", "out", "err", "value", "error")


def searchable_text(entry: Entry) -> str:
    """Return the text of an entry that can be searched for."""
    return "\n".join(str(entry[key]) for key in SEARCHED_FIELDS if entry.get(key))


def info_from_entry(session: str, entry: Entry) -> TranscriptInfo:
    """Return the description of a session's transcript, as far as its first entry tells."""
    return TranscriptInfo(session, entry.get("name"), str(entry.get("runtime", "")), str(entry.get("time", "")))

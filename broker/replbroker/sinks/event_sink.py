"""What may look on in the broker's loop, and the faces of a transcript's storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from replbroker.core.effects import PublishEvent

Register = Callable[[int, Callable[[], None]], None]
Unregister = Callable[[int], None]
Entry = dict[str, Any]


class EventSink(Protocol):
    """Gets every event that somebody outside the core wants. Never waits, never raises."""

    @property
    def due(self) -> float | None:
        """When `flush` is wanted."""

    def register_descriptors(self, register: Register, unregister: Unregister) -> None:
        """Name the descriptors that are to be polled."""

    def on_event(self, event: PublishEvent, now: float) -> None:
        """One event."""

    def flush(self, now: float) -> None:
        """Do what is due."""

    def close(self) -> None:
        """Finish, within seconds."""


class TranscriptInfo(NamedTuple):
    """What is known of a transcript without reading it."""

    session: str
    name: str | None
    runtime: str
    created: str
    updated: float = 0.0  # Unix seconds
    bytes: int = 0

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.session


HEADER = "transcript/header"


def header_entry(head: TranscriptInfo) -> Entry:
    """The head as the first line of a transcript in JSON lines."""
    return {
        "type": HEADER,
        "v": 1,
        "session": head.session,
        "name": head.name,
        "runtime": head.runtime,
        "created": head.created,
    }


class NoTranscript(LookupError):
    """There is none of this session."""


class TranscriptExists(ValueError):
    """There is one already."""


class CorruptEntry(ValueError):
    """An entry cannot be read, and reading was to be strict."""


class TranscriptBackend(Protocol):
    """Where transcripts are kept. Entries are events as the bus made them. What is read back are entries and nothing
    else: that a session's variables are there again is never implied.

    Everything raises OSError when the place cannot be read or written, and works on exact session ids.
    """

    def create(self, head: TranscriptInfo) -> None:
        """Begin one, durably. Raises TranscriptExists."""

    def open(self, head: TranscriptInfo) -> None:
        """Make it ready to be appended to; begun when it is not there."""

    def open_existing(self, session: str) -> TranscriptInfo:
        """The same for one that is there. Raises NoTranscript."""

    def append(self, session: str, entries: Sequence[bytes]) -> None:
        """Add entries: all of them, or none and OSError. Raises NoTranscript for one that is not open."""

    def close(self, session: str) -> None:
        """Nothing more is appended for now."""

    def load(self, session: str, *, strict: bool = False) -> Iterator[Entry]:
        """All entries, oldest first. What is half or no JSON is skipped, or with `strict` raises Damaged."""

    def entries_since(self, session: str, seq: int) -> Iterator[Entry]:
        """Those with a higher number."""

    def get(self, session: str) -> TranscriptInfo | None:
        """The one of this id."""

    def find(self, name: str) -> Sequence[TranscriptInfo]:
        """Those of sessions that had this name or id, the newest first."""

    def list(self) -> Sequence[TranscriptInfo]:
        """All, the newest first."""

    def latest(self) -> TranscriptInfo | None:
        """The one that was appended to last."""

    def lock(self, session: str) -> Callable[[], None] | None:
        """Keep others from appending; what lets go again, or None when somebody else has it."""

    def search(self, text: str, session: str | None = None) -> Iterator[Entry]:
        """Entries whose code, output, value or error has this text, in any case of letters."""

    def prune(self, oldest: float, most_bytes: int, keep: frozenset[str]) -> int:
        """Remove what nothing was added to since `oldest` (Unix seconds), and the oldest until the rest is within
        `most_bytes`; how many went."""

    def shut(self) -> None:
        """Let go of everything."""


SEARCHED_FIELDS = ("code", "out", "err", "value", "error")


def searchable_text(entry: Entry) -> str:
    """What can be searched for in an entry."""
    return "\n".join(str(entry[key]) for key in SEARCHED_FIELDS if entry.get(key))


def info_from_entry(session: str, entry: Entry) -> TranscriptInfo:
    """The head that an entry's session has, as far as its first entry tells."""
    return TranscriptInfo(session, entry.get("name"), str(entry.get("runtime", "")), str(entry.get("time", "")))

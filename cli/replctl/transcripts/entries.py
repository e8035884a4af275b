"""From a transcript's entries to turns: what was run, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from replctl.client.result import display_value, exit_status

CODE_OPS = ("eval",)  # what can be run again as it stands; a file or a package tool is named only


class TranscriptEntry(msgspec.Struct, rename="kebab"):
    """One eval. `status` is empty when its end was never told: it ran when the broker was killed, or still runs."""

    eval_id: int
    code: str
    op: str = "eval"
    epoch: int = 1
    time: str = ""
    agent: str | None = None
    status: str = ""
    out: str = ""
    err: str = ""
    value: str | None = None
    ns: str | None = None
    mime: dict[str, Any] | None = None
    images: list[Any] = []
    error: str | None = None
    traceback: str | None = None
    duration_ms: float | None = None
    truncated: bool = False  # something of what came of it is missing
    code_truncated: bool = False

    @property
    def display_value(self) -> str | None:
        """The value when there is one to show, or how a shell's command failed."""
        return display_value(self.value, self.ns) or exit_status(self.value, self.ns)

    @property
    def marks(self) -> list[str]:
        """What there is to say where it did not end, or is not whole here."""
        found = [] if self.status else ["not ended"]
        found += ["code cut"] if self.code_truncated else []
        return found + (["output cut"] if self.truncated else [])


@dataclass(slots=True)
class StateLoss:
    """The variables from before are gone: a reset, a loss, another environment."""

    why: str

    def __str__(self) -> str:
        return f"variables from above are gone: {self.why}"


@dataclass(slots=True)
class MissingEvents:
    """Events that the transcript does not have: the older half went to make room, or they could not be written."""

    events: int

    def __str__(self) -> str:
        return f"{self.events} events are missing here: no room was left for them"


TranscriptPart = TranscriptEntry | StateLoss | MissingEvents


class SessionTranscript(NamedTuple):
    """A transcript: of which session, what it ran, and what. `label` and `runtime` are empty where nothing tells."""

    label: str
    runtime: str
    parts: list[TranscriptPart]


def read_transcript(entries: Iterable[dict[str, Any]]) -> SessionTranscript:
    """All of one session. Raises ValueError when there is no event among the entries."""
    kept = [entry for entry in entries if "/" in str(entry.get("type"))]
    if not kept:
        raise ValueError("no events")
    created = next((entry for entry in kept if entry["type"] in ("transcript/header", "session/created")), {})
    label = created.get("name") or kept[0].get("session") or ""
    return SessionTranscript(str(label), str(created.get("runtime", "")), to_entries(kept))


def to_entries(entries: Iterable[dict[str, Any]]) -> list[TranscriptPart]:
    """Turns, and what is between them, in the order in which they began."""
    found: list[TranscriptPart] = []
    turns: dict[int, TranscriptEntry] = {}
    last = 0
    for entry in entries:
        kind, number, seq = entry.get("type"), entry.get("eval", 0), entry.get("seq", 0)
        if seq > last + 1:
            found.append(MissingEvents(seq - last - 1))
        last = max(last, seq)
        if kind == "eval/accepted":
            turns[number] = turn = TranscriptEntry(
                number,
                entry.get("code", ""),
                entry.get("op", "eval"),
                entry.get("epoch", 1),
                entry.get("time", ""),
                entry.get("agent"),
                code_truncated=entry.get("code-truncated", False),
            )
            found.append(turn)
        elif kind == "eval/started" and "code" in entry and number in turns:  # hooks had to judge it first
            turns[number].code, turns[number].code_truncated = entry["code"], entry.get("code-truncated", False)
        elif kind == "eval/finished":
            if number not in turns:  # its beginning was given up to make room
                turns[number] = TranscriptEntry(number, "", epoch=entry.get("epoch", 1), code_truncated=True)
                found.append(turns[number])
            _finish(turns[number], entry)
        elif kind in ("session/reset", "session/lost", "session/moved"):
            found.append(StateLoss(str(entry.get("reason") or entry.get("why") or "moved to another environment")))
    return found


def _finish(turn: TranscriptEntry, entry: dict[str, Any]) -> None:
    for name in ("status", "out", "err", "value", "ns", "mime", "images", "error", "traceback", "truncated"):
        if name in entry:
            setattr(turn, name, entry[name])
    turn.duration_ms = entry.get("duration-ms")


def entries_only(found: Iterable[TranscriptPart]) -> Iterator[TranscriptEntry]:
    """The turns alone."""
    return (each for each in found if isinstance(each, TranscriptEntry))


def parse_lines(data: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Entries of a file of JSON lines. What is none is left out: the last line of a killed broker may be half."""
    for line in data:
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(entry, dict):
            yield entry

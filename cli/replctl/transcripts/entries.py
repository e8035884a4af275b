"""Parsed transcripts: evals with their results, state losses, rollbacks, missing events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from replctl.client.result import display_value, exit_status
from replwire.quantities import count_of

CODE_OPS = ("eval",)  # operations with code to run again; files and package tools are only named


class TranscriptEntry(msgspec.Struct, rename="kebab"):
    """One eval. `status` is empty if its end is unknown: the broker was killed, or the eval still runs."""

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
    truncated: bool = False  # part of the result is missing
    code_truncated: bool = False
    undone: bool = False  # by a rollback or a crash

    @property
    def display_value(self) -> str | None:
        """The value to display, or a shell's exit status."""
        return display_value(self.value, self.ns) or exit_status(self.value, self.ns)

    @property
    def marks(self) -> list[str]:
        """Notes on an eval that did not end or is incomplete."""
        found = [] if self.status else ["unfinished"]
        found += ["undone"] if self.undone else []
        found += ["code truncated"] if self.code_truncated else []
        return found + (["output truncated"] if self.truncated else [])


@dataclass(slots=True)
class StateLoss:
    """The variables were lost: a reset, a lost worker, another environment."""

    why: str

    def __str__(self) -> str:
        return f"variables from above are lost: {self.why}"


@dataclass(slots=True)
class StateRollback:
    """The session went on from a checkpoint; the undone evals are marked."""

    label: str
    undone: list[int]
    cause: str | None = None

    def __str__(self) -> str:
        evals = f", which undid evals {', '.join(map(str, self.undone))}" if self.undone else ""
        return f"the session went back to checkpoint {self.label}{evals}" + (f": {self.cause}" if self.cause else "")


@dataclass(slots=True)
class StateOrigin:
    """The session began as a copy of another, with these evals of it. `has_evals`: they stand before this."""

    source: str
    checkpoint: int
    evals: list[int]
    has_evals: bool = False

    def __str__(self) -> str:
        evals = f", with its evals {', '.join(map(str, self.evals))}" if self.evals else ""
        return f"the session began as a copy of session {self.source} at checkpoint {self.checkpoint}{evals}"


@dataclass(slots=True)
class MissingEvents:
    """Events that are not in the transcript: pruned to make room, or not written."""

    events: int

    def __str__(self) -> str:
        return f"{count_of(self.events, 'event')} missing here"


TranscriptPart = TranscriptEntry | StateLoss | StateRollback | StateOrigin | MissingEvents


class SessionTranscript(NamedTuple):
    """A parsed transcript. `label` and `runtime` are empty if unknown, `sources` are what it was copied from."""

    label: str
    runtime: str
    parts: list[TranscriptPart]
    sources: tuple[str, ...] = ()


def read_transcript(entries: Iterable[dict[str, Any]]) -> SessionTranscript:
    """Parse the entries of one session. Raises ValueError if there is no event among them."""
    kept = [entry for entry in entries if "/" in str(entry.get("type"))]
    if not kept:
        raise ValueError("no events")
    created = next((entry for entry in kept if entry["type"] in ("transcript/header", "session/created")), {})
    label = created.get("name") or kept[0].get("session") or ""
    return SessionTranscript(str(label), str(created.get("runtime", "")), to_entries(kept))


def add_origin(branch: SessionTranscript, load: Callable[[str], SessionTranscript | None]) -> SessionTranscript:
    """Put the evals that a branch began with before its own.

    Args:
        branch: Any transcript; one of no branch is returned as it is.
        load: Loads the transcript of a session by id; None if there is none.
    """
    origin = next((part for part in branch.parts if isinstance(part, StateOrigin)), None)
    if origin is None or origin.has_evals or (source := load(origin.source)) is None:
        return branch
    source = add_origin(source, load)
    copied: list[TranscriptPart] = []
    own = source.parts
    for at, part in enumerate(source.parts):
        if isinstance(part, StateOrigin):  # what stands before it belongs to the source's own source
            copied, own = list(source.parts[: at + 1]), source.parts[at + 1 :]
    contained = set(origin.evals)
    copied += [msgspec.structs.replace(each, undone=False) for each in entries_only(own) if each.eval_id in contained]
    origin.has_evals = True
    return branch._replace(parts=[*copied, *branch.parts], sources=(*source.sources, source.label))


def to_entries(entries: Iterable[dict[str, Any]]) -> list[TranscriptPart]:
    """Return evals and the gaps between them, in starting order."""
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
        elif kind == "eval/started" and "code" in entry and number in turns:  # hooks had to decide first
            turns[number].code, turns[number].code_truncated = entry["code"], entry.get("code-truncated", False)
        elif kind == "eval/finished":
            if number not in turns:  # its beginning was pruned
                turns[number] = TranscriptEntry(number, "", epoch=entry.get("epoch", 1), code_truncated=True)
                found.append(turns[number])
            _finish(turns[number], entry)
        elif kind in ("session/reset", "session/lost", "session/moved"):
            found.append(StateLoss(str(entry.get("reason") or entry.get("why") or "switched to another environment")))
        elif kind == "session/branched":
            found.append(StateOrigin(str(entry.get("source")), entry.get("checkpoint", 0), entry.get("evals", [])))
        elif kind == "session/rolled-back":
            found.append(_roll_back(turns, entry))
    return found


def _roll_back(turns: dict[int, TranscriptEntry], entry: dict[str, Any]) -> StateRollback:
    """Mark the evals that a rollback has undone, and take the mark from those that count again."""
    undone, redone = entry.get("undone", []), entry.get("redone", [])
    for number, mark in (dict.fromkeys(undone, True) | dict.fromkeys(redone, False)).items():
        if number in turns:
            turns[number].undone = mark
    name = entry.get("name")
    return StateRollback(f"{entry.get('checkpoint', 0)}" + (f" ({name})" if name else ""), undone, entry.get("cause"))


def _finish(turn: TranscriptEntry, entry: dict[str, Any]) -> None:
    for name in ("status", "out", "err", "value", "ns", "mime", "images", "error", "traceback", "truncated"):
        if name in entry:
            setattr(turn, name, entry[name])
    turn.duration_ms = entry.get("duration-ms")


def entries_only(found: Iterable[TranscriptPart]) -> Iterator[TranscriptEntry]:
    """Return the evals only."""
    return (each for each in found if isinstance(each, TranscriptEntry))


def parse_lines(data: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the entries of a file of JSON lines. Invalid lines are skipped: a killed broker may leave half a line."""
    for line in data:
        try:
            entry = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if isinstance(entry, dict):
            yield entry

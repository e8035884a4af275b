"""Replay of a transcript's evals in another session, and comparison of the results."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replctl.client.result import Result
from replctl.transcripts.entries import (
    CODE_OPS,
    MissingEvents,
    StateLoss,
    StateOrigin,
    StateRollback,
    TranscriptEntry,
    TranscriptPart,
)

_ADDRESS = r"\b0x[0-9a-f]{6,}\b"
_MAX_DIFF_LINES = 20  # lines of a diff to show
_OUTCOMES = {0: "ok", 1: "error", 6: "timeout", 7: "cancelled", 8: "died"}


class Drift(NamedTuple):
    """An eval with a different result than before."""

    eval_id: int
    code: str
    what: list[str]  # which of status, out, err, value, error differ
    diff: list[str]


class ReplayReport(NamedTuple):
    """Outcome of a replay.

    Attributes:
        run_count: Number of evals that were run again.
        drifts: Evals with a different result.
        skipped: Evals that could not be run again, each with the reason.
        missing: Number of events that the transcript lacks.
    """

    run_count: int
    drifts: list[Drift]
    skipped: list[tuple[int, str]]
    missing: int


def replay(
    found: Sequence[TranscriptPart],
    run: Callable[[str], Result],
    forget: Callable[[], None],
    *,
    names: Sequence[str],
    exact: bool = False,
) -> ReplayReport:
    """Run each eval again and compare the results.

    Args:
        found: Parts of the transcript.
        run: Runs code in the target session.
        forget: Resets the target session, where the original lost its state.
        names: Names of both sessions, which appear in errors as `<NAME:3>`.
        exact: Compare memory addresses and eval names as well.
    """
    anyway = None if exact else re.compile("|".join([_ADDRESS, *(rf"<{re.escape(name)}:\d+>" for name in names)]))
    drifted, skipped, ran, missing = [], [], 0, 0
    for turn in found:
        if isinstance(turn, StateLoss):
            forget()
            continue
        if isinstance(turn, StateRollback):
            continue  # what it has undone is not run
        if isinstance(turn, StateOrigin):
            why = f"it ran in session {turn.source}, whose transcript is not here"
            skipped += [] if turn.has_evals else [(number, why) for number in turn.evals]
            continue
        if isinstance(turn, MissingEvents):
            missing += turn.events
            continue
        if (reason := _skip_reason(turn)) is not None:
            skipped.append((turn.eval_id, reason))
            continue
        ran += 1
        drift = _compare(turn, run(turn.code), anyway)
        if drift is not None:
            drifted.append(drift)
    return ReplayReport(ran, drifted, skipped, missing)


def _skip_reason(turn: TranscriptEntry) -> str | None:
    if turn.undone:
        return "it was undone"
    if turn.op not in CODE_OPS:
        return f"{turn.code.split(chr(10))[0][:60]}: transcripts include no files or packages"
    if turn.code_truncated:
        return "its code was truncated"
    if turn.status in ("", "refused"):
        return "it did not finish"
    if turn.duration_ms is None:
        return "it never ran"
    return None


def _compare(turn: TranscriptEntry, result: Result, anyway: re.Pattern[str] | None) -> Drift | None:
    before: dict[str, Any] = {
        "status": turn.status,
        "value": turn.value or "",
        "out": turn.out,
        "err": turn.err,
        "error": turn.error or "",
    }
    after: dict[str, Any] = {
        "status": _OUTCOMES.get(result.exit, str(result.code)),
        "value": result.value or "",
        "out": result.out,
        "err": result.err,
        "error": result.error or "",
    }
    if turn.truncated:  # the transcript has only the end of the output
        for stream in ("out", "err"):
            after[stream] = after[stream][len(after[stream]) - len(before[stream]) :] if before[stream] else ""
    what = [key for key in before if _normalize(before[key], anyway) != _normalize(after[key], anyway)]
    if not what:
        return None
    diff: list[str] = []
    for key in what:
        diff += difflib.unified_diff(
            str(before[key]).splitlines(), str(after[key]).splitlines(), f"{key} then", f"{key} now", lineterm="", n=1
        )
    return Drift(turn.eval_id, turn.code, what, diff[:_MAX_DIFF_LINES])


def _normalize(text: str, anyway: re.Pattern[str] | None) -> str:
    return text if anyway is None else anyway.sub("…", text)

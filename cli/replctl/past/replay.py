"""Runs a transcript's evals again in another session, and compares what comes of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from replctl.client.result import Result
from replctl.past.turns import CODE_OPS, Break, Gap, Part, Turn

_ADDRESS = r"\b0x[0-9a-f]{6,}\b"
_MOST_LINES = 20  # of a difference that is shown
_ENDS = {0: "ok", 1: "error", 6: "timeout", 7: "cancelled", 8: "died"}


class Drift(NamedTuple):
    """One eval that did not do what it did before."""

    eval_id: int
    code: str
    what: list[str]  # of status, out, err, value
    diff: list[str]


class Report(NamedTuple):
    """What came of a replay. `skipped` are evals that could not be run again, with why; `missing` is how many events
    the transcript has not."""

    ran: int
    drifted: list[Drift]
    skipped: list[tuple[int, str]]
    missing: int


def replay(
    found: Sequence[Part],
    run: Callable[[str], Result],
    forget: Callable[[], None],
    *,
    names: Sequence[str],
    exact: bool = False,
) -> Report:
    """Run each again with `run(code)`, and `forget()` the variables where they were lost then. Memory addresses, and
    what evals are called in errors (`<NAME:3>`, for the sessions' `names`) may differ unless `exact`."""
    anyway = None if exact else re.compile("|".join([_ADDRESS, *(rf"<{re.escape(name)}:\d+>" for name in names)]))
    drifted, skipped, ran, missing = [], [], 0, 0
    for turn in found:
        if isinstance(turn, Break):
            forget()
            continue
        if isinstance(turn, Gap):
            missing += turn.events
            continue
        if (why := _why_not(turn)) is not None:
            skipped.append((turn.eval_id, why))
            continue
        ran += 1
        drift = _compare(turn, run(turn.code), anyway)
        if drift is not None:
            drifted.append(drift)
    return Report(ran, drifted, skipped, missing)


def _why_not(turn: Turn) -> str | None:
    if turn.op not in CODE_OPS:
        return f"{turn.code.split(chr(10))[0][:60]}: a transcript has no files and no packages"
    if turn.code_truncated:
        return "its code was too long to be kept"
    if turn.status in ("", "refused"):
        return "it never ran to an end"
    if turn.duration_ms is None:
        return "it never ran"
    return None


def _compare(turn: Turn, result: Result, anyway: re.Pattern[str] | None) -> Drift | None:
    before: dict[str, Any] = {
        "status": turn.status,
        "value": turn.value or "",
        "out": turn.out,
        "err": turn.err,
        "error": turn.error or "",
    }
    after: dict[str, Any] = {
        "status": _ENDS.get(result.exit, str(result.word)),
        "value": result.value or "",
        "out": result.out,
        "err": result.err,
        "error": result.error or "",
    }
    if turn.truncated:  # the transcript has the ends alone
        for stream in ("out", "err"):
            after[stream] = after[stream][len(after[stream]) - len(before[stream]) :] if before[stream] else ""
    what = [key for key in before if _same(before[key], anyway) != _same(after[key], anyway)]
    if not what:
        return None
    diff: list[str] = []
    for key in what:
        diff += difflib.unified_diff(
            str(before[key]).splitlines(), str(after[key]).splitlines(), f"{key} then", f"{key} now", lineterm="", n=1
        )
    return Drift(turn.eval_id, turn.code, what, diff[:_MOST_LINES])


def _same(text: str, anyway: re.Pattern[str] | None) -> str:
    return text if anyway is None else anyway.sub("…", text)

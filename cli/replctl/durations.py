"""Durations as people write them: `500ms`, `2s`, `1.5m`, `1h`, `30d`; a plain number is seconds."""

from __future__ import annotations

import math
import re

_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_FORM = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|d|)\Z")
MAX_SECONDS = 365 * 86_400.0


def parse_duration(text: str) -> float:
    """Return seconds. Raises ValueError for an invalid duration, or one over a year."""
    match = _FORM.match(text.strip().lower())
    if match is None:
        raise ValueError(f"not a duration (500ms, 2s, 1.5m, 1h, 30d): {text!r}")
    seconds = float(match[1]) * _UNITS[match[2]]
    if not math.isfinite(seconds) or seconds > MAX_SECONDS:
        raise ValueError(f"longer than a year: {text!r}")
    return seconds


def format_duration(milliseconds: float) -> str:
    """Format a duration: `350 ms`, `2 s`, `1.5 s`, `3 min 20 s`, `2 h 5 min`."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    big, small, unit, part = (
        (whole // 60, whole % 60, "min", "s") if whole < 3600 else (whole // 3600, whole % 3600 // 60, "h", "min")
    )
    return f"{big} {unit}" + (f" {small} {part}" if small else "")

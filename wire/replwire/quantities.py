"""Counts in messages."""

from __future__ import annotations


def count_of(number: int | None, noun: str) -> str:
    """Return a count with its noun: `1 eval`, `2 evals`, `0 entries` of `entry`. None counts as 0."""
    if number == 1:
        return f"1 {noun}"
    return f"{number or 0} {noun[:-1] + 'ies' if noun.endswith('y') else noun + 's'}"

"""Samples to numbers, numbers to tables. Every table names what it is compared with, and what was promised."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["floor", "ours", "peer"]


def median(samples: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(samples)


def p99(samples: Sequence[float]) -> float:
    """99 of 100 are not above it; with fewer than 100 samples that is the largest."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, -(-len(ordered) * 99 // 100) - 1)]


def p01(samples: Sequence[float]) -> float:
    """99 of 100 are not below it: the bad end of a figure where more is better."""
    return -p99([-sample for sample in samples])


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One contender's samples, in the unit of its table."""

    who: str
    role: Role
    samples: list[float]
    note: str = ""

    @property
    def p50(self) -> float:
        """The figure that is compared."""
        return median(self.samples)


@dataclass(frozen=True, slots=True)
class Check:
    """A promise: a ratio or a figure, and its bound."""

    what: str
    value: float
    target: float
    at_most: bool
    unit: str = "x"

    @property
    def is_met(self) -> bool:
        """Return whether the promise was kept."""
        return self.value <= self.target if self.at_most else self.value >= self.target

    def text(self) -> str:
        """As one line."""
        bound = "at most" if self.at_most else "at least"
        verdict = "met" if self.is_met else "**missed**"
        target = f"{bound} {number(self.target)} {self.unit}"
        return f"{self.what}: {number(self.value)} {self.unit} (target: {target}) {verdict}"


@dataclass(slots=True)
class BenchTable:
    """One measurement. `base` is the row that the ratio column compares with."""

    name: str
    title: str
    unit: str
    base: str
    rows: list[SampleRow]
    more_is_better: bool = False
    checks: list[Check] = field(default_factory=list)
    sessions: str = ""  # sandboxed or not; empty where the rows say so, or there are none

    def row(self, who: str) -> SampleRow:
        """Return the row of a contender. Raises KeyError."""
        for row in self.rows:
            if row.who == who:
                return row
        raise KeyError(who)

    def ratio(self, who: str, other: str) -> float:
        """Return the figure of `who` as a multiple of that of `other`."""
        return self.row(who).p50 / self.row(other).p50

    def lost_rows(self) -> list[str]:
        """Rows of ours that a peer beats, and which."""
        return [
            f"{self.title}: {row.who} loses to {', '.join(self.losses(row))}" for row in self.rows if self.losses(row)
        ]

    def losses(self, row: SampleRow) -> list[str]:
        """Peers that do better than this row of ours."""
        if row.role != "ours":
            return []
        sign = -1 if self.more_is_better else 1
        return [peer.who for peer in self.rows if peer.role == "peer" and sign * peer.p50 < sign * row.p50]

    def markdown(self) -> str:
        """Heading, rows, verdicts."""
        bad_end = "p1" if self.more_is_better else "p99"
        lines = [
            f"### {self.title}",
            "",
            *([f"Our sessions: {self.sessions}.", ""] if self.sessions else []),
            f"| {self.unit} | p50 | {bad_end} | n | x {self.base} | |",
            "|---|--:|--:|--:|--:|---|",
        ]
        for row in self.rows:
            far = p01(row.samples) if self.more_is_better else p99(row.samples)
            remarks = [f"**we lose to {peer}**" for peer in self.losses(row)] + ([row.note] if row.note else [])
            lines.append(
                f"| {row.who} | {number(row.p50)} | {number(far)} | {len(row.samples)}"
                f" | {number(self.ratio(row.who, self.base))} | {'; '.join(remarks)} |"
            )
        lines += [""] + [f"- {check.text()}" for check in self.checks]
        return "\n".join(lines).rstrip() + "\n"

    def data(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "sessions": self.sessions,
            "rows": [
                {
                    "who": row.who,
                    "role": row.role,
                    "p50": row.p50,
                    "p99": p99(row.samples),
                    "p1": p01(row.samples),
                    "n": len(row.samples),
                    "note": row.note,
                    "loses-to": self.losses(row),
                }
                for row in self.rows
            ],
            "checks": _checks_data(self.checks),
        }


def _checks_data(checks: list[Check]) -> list[dict[str, Any]]:
    return [
        {
            "what": check.what,
            "value": check.value,
            "target": check.target,
            "at-most": check.at_most,
            "met": check.is_met,
        }
        for check in checks
    ]


@dataclass(slots=True)
class FactSheet:
    """A measurement whose outcome is told in words and counts. It stands among tables."""

    name: str
    title: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    sessions: str = ""

    def lost_rows(self) -> list[str]:
        """Return no rows: there are no peers here."""
        return []

    def markdown(self) -> str:
        """Heading, rows, verdicts."""
        lines = [f"### {self.title}", "", "| | |", "|---|---|", *(f"| {what} | {found} |" for what, found in self.rows)]
        return "\n".join([*lines, "", *(f"- {check.text()}" for check in self.checks)]) + "\n"

    def data(self) -> dict[str, Any]:
        """For `--json`."""
        return {"name": self.name, "title": self.title, "rows": self.rows, "checks": _checks_data(self.checks)}


def number(value: float) -> str:
    """Three digits that matter, and no exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

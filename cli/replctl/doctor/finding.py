"""Findings of a check."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """A finding of one check. `cause` and `fix` are null if all is well.

    `fail`: a broker does not start, or sessions cannot be opened. `warn`: it works, with restrictions.
    """

    name: str
    level: Level
    seen: str
    cause: str | None = None
    fix: str | None = None


def ok(name: str, seen: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(name, "ok", seen)


def warn(name: str, seen: str, cause: str, fix: str) -> Finding:
    """Return a finding about a restriction."""
    return Finding(name, "warn", seen, cause, fix)


def fail(name: str, seen: str, cause: str, fix: str) -> Finding:
    """Return a finding about a failure."""
    return Finding(name, "fail", seen, cause, fix)

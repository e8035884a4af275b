"""What a check found."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One line of the doctor's. `cause` says what follows from what was seen, `mend` what to do; null when all is well.

    `fail`: a broker does not start, or sessions do not open. `warn`: it works, with something less than it could have.
    """

    name: str
    level: Level
    seen: str
    cause: str | None = None
    fix: str | None = None


def ok(name: str, seen: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", seen)


def warn(name: str, seen: str, cause: str, fix: str) -> Finding:
    """It works, with less."""
    return Finding(name, "warn", seen, cause, fix)


def fail(name: str, seen: str, cause: str, fix: str) -> Finding:
    """It does not work."""
    return Finding(name, "fail", seen, cause, fix)

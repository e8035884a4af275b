"""Message about client and broker of different versions."""

from __future__ import annotations

import re


def describe_mismatch(ours: str, theirs: str) -> str:
    """Describe which of the two versions is older and how to fix it."""
    restart = "`replctl shutdown` stops it with its sessions, and the next command starts the new version"
    here, there = _release(ours), _release(theirs)
    if here > there:
        return f"the broker (replctl {theirs}) is older than this client ({ours}): {restart}"
    if here < there:
        return f"this client ({ours}) is older than the broker (replctl {theirs}): upgrade it, or restart its program"
    advice = f"upgrade the client or restart the broker ({restart})"
    return f"the broker is replctl {theirs} and this client is {ours}: {advice}"


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version, without trailing zeros."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

"""Client and broker of different versions: the sentence that says so, and what to do."""

from __future__ import annotations

import re


def describe_mismatch(ours: str, theirs: str) -> str:
    """Which versions they are, which is older, and what mends it."""
    restart = "`replctl shutdown` ends it, with its sessions, and the next command starts the new one"
    here, there = _release(ours), _release(theirs)
    if here > there:
        return f"the broker is replctl {theirs}, older than this client, {ours}: {restart}"
    if here < there:
        return f"the broker is replctl {theirs}, and this client, {ours}, is older: upgrade it, or restart what has it"
    return (
        f"the broker is replctl {theirs}, and this client {ours}: upgrade the client, or restart the broker ({restart})"
    )


def _release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, without the zeros at their end."""
    found = re.match(r"\d{1,9}(?:\.\d{1,9})*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

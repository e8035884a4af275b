"""Changes of a session's files as lines of text."""

from __future__ import annotations

from collections.abc import Iterable


def change_lines(changes: Iterable[tuple[str, str]], patch: str | None, *, truncated: bool) -> list[str]:
    """Return a line for each change, a pair of kind and path, then the patch."""
    lines = [f"{change:<9} {path}" for change, path in changes]
    lines += (patch or "").splitlines()
    return [*lines, "[not all changes are shown]"] if truncated else lines

"""The checkpoints of a session as rows of a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from replctl.durations import format_duration
from replwire.replies import CheckpointEntry

COLUMNS = ("CHECKPOINT", "NAME", "AFTER EVAL", "AGE", "MEMORY", "TAKEN")
_MIB = 1024 * 1024


def tree_rows(entries: Sequence[CheckpointEntry], now: float) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield numbers and table rows: each checkpoint below its parent, indented where a line of evals forks.

    Args:
        entries: The checkpoints, oldest first.
        now: Unix time.
    """
    numbers = {entry.checkpoint for entry in entries}
    children: dict[int | None, list[CheckpointEntry]] = {}
    for entry in entries:
        parent = entry.parent if entry.parent in numbers and (entry.parent or 0) < entry.checkpoint else None
        children.setdefault(parent, []).append(entry)
    waiting = [(entry, 0) for entry in reversed(children.get(None, []))]
    while waiting:
        entry, depth = waiting.pop()
        mark = "*" if entry.current else ""
        memory = None if entry.memory_bytes is None else f"{entry.memory_bytes / _MIB:.1f} MiB"
        how = "auto" if entry.automatic else "by request"
        number = f"{'  ' * depth}{entry.checkpoint}{mark}"
        yield entry.checkpoint, (number, entry.checkpoint_name, entry.eval_id, _age(entry.created, now), memory, how)
        below = children.get(entry.checkpoint, [])
        waiting += [(each, depth + (len(below) > 1)) for each in reversed(below)]


def _age(created: str, now: float) -> str | None:
    try:
        return format_duration(max(0.0, now - datetime.fromisoformat(created).timestamp()) * 1000)
    except ValueError:
        return None

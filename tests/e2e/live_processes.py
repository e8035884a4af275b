"""Looks at processes that may end meanwhile: of a tree that was listed, some are gone when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from kit import is_alive

T = TypeVar("T")

# A program for a Python session, which prints every environment and command line that is to be seen there.
LOOK_INSIDE = """
import glob, os
text = repr(dict(os.environ))
for path in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline'):
    try: text += open(path, errors='replace').read()
    except OSError: pass
print(text)
"""


def look_at_each(pids: Iterable[int], look: Callable[[int], T], at_least: int = 1) -> dict[int, T]:
    """Return the result of `look` for each of these processes, without those that have ended meanwhile.

    Args:
        pids: The processes, as they were listed.
        look: Reads below `/proc/PID`. Errors because the process has ended leave it out; others are raised.
        at_least: How many have to be left, so that no test passes with nothing seen.
    """
    results = {}
    for pid in pids:
        try:
            results[pid] = look(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except PermissionError:  # what a process that ends answers to those who may not trace it
            if is_alive(pid):
                raise
    assert len(results) >= at_least, f"only {len(results)} processes were seen, of at least {at_least}"
    return results


def read_each(pids: Iterable[int], name: str, at_least: int = 1) -> dict[int, bytes]:
    """Return the content of `/proc/PID/name` for each of these processes, without those that have ended meanwhile.

    A process of which a zombie is left has an empty command line and environment, and does not count as seen.
    """
    texts = look_at_each(pids, lambda pid: Path(f"/proc/{pid}/{name}").read_bytes(), at_least)
    seen = sum(map(bool, texts.values()))
    assert seen >= at_least, f"only {seen} processes had a {name}, of at least {at_least}"
    return texts


def parent_of(pid: int) -> int:
    """Return the pid of the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

"""Sentences on what a checkpoint does not contain."""

from __future__ import annotations

from collections.abc import Iterable

from replworker.runtimes import frames

_MAX_NAMES = 20
_NO_COPIES = {
    "bash": "a fork of bash is a subshell, without the traps, jobs and `$$` of the session: clone or save it instead",
    "node": "Node cannot be forked, and its snapshot has no functions or classes: clone or save it instead",
}


def why_not_copied(runtime: str) -> str:
    """Say why there are no checkpoints in a runtime whose interpreter takes none."""
    return _NO_COPIES.get(runtime, f"the runtime {runtime} takes no checkpoints")


def missing_from(event: frames.CheckpointedFrame) -> list[str]:
    """Say what a rollback to a checkpoint does not restore."""
    found = []
    if event.threads:
        found.append(f"threads do not come back: {_list(event.threads)}")
    elif event.native:
        found.append(f"{_count(event.native, 'thread')} of native libraries do not come back")
    if event.sockets:
        found.append(f"sockets are closed: {event.sockets}")
    if event.pipes:
        found.append(f"pipes are closed: {event.pipes}")
    if event.events:
        found.append(f"descriptors of epoll and timers are shared with the copy: {event.events}")
    if event.children:
        found.append(f"child processes are killed: {len(event.children)}")
    return found


def describe_threads(event: frames.CheckpointedFrame) -> str:
    """Say why no automatic checkpoint is taken."""
    if event.threads:
        return f"threads run, and a copy of the session would not have them: {_list(event.threads)}"
    return "a native library (such as libgomp or polars) keeps threads, and a copy of the session could hang in it"


def killed_processes(commands: list[str]) -> list[str]:
    """Say which processes a rollback killed."""
    return [f"processes were killed: {_list(commands)}"] if commands else []


def _list(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

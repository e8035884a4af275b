"""Memory use of a session: how much, how often to sample, and the limit.

A control group with a memory controller also enforces the limit; then this only reports. Without one, the worker
samples the session's processes and ends a session over its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from replwire.limits import MIB
from replworker.processes import ProcessTree
from replworker.runtimes.interpreter_process import InterpreterProcess
from replworker.sandbox.group_memory import used_bytes
from replworker.session_sandbox import SessionSandbox

_FAST_S, _CALM_S, _SLOW_S = 0.05, 0.25, 4.0
_MAX_COST_FRACTION = 20  # sampling may take one part in this many of the time
_STEP_BYTES = 8 * MIB  # a change reported at once; smaller ones wait for the next heartbeat

Measure = Callable[[int | None], int]  # bytes; the argument: above this the figure has to be exact


def create_memory_watch(process: InterpreterProcess, sandbox: SessionSandbox | None) -> MemoryWatch:
    """Create the memory watch of an interpreter and its descendants."""
    if sandbox is not None and (group := sandbox.wrapper.memory_group()) is not None:
        return MemoryWatch(lambda _: used_bytes(*group), None)
    tree = ProcessTree(process.outer_pid)
    limit = None if sandbox is None else sandbox.policy.limits.memory_bytes
    return MemoryWatch(lambda doubt: tree.memory(doubt, process.sandboxed_pid), limit)


class MemorySample(NamedTuple):
    """Result of one sample."""

    used: int
    changed: bool  # by enough to report now
    cause: str | None  # why the session has to end, or None
    pause_s: float  # until the next one


class MemoryWatch:
    """Memory watch of a session. `limit` is None if a control group enforces it, or there is none."""

    def __init__(self, measure: Measure, limit: int | None) -> None:
        self._measure = measure
        self._limit = limit
        self._last_reported = 0
        self._previous = 0
        self._pause_s = _CALM_S
        self.used = 0

    @property
    def is_idle(self) -> bool:
        """True if the next sample is far off; a starting eval brings it forward."""
        return self._pause_s > _CALM_S

    def on_eval_start(self) -> float:
        """Bring the next sample forward and return the pause until then in seconds."""
        self._pause_s = _CALM_S
        return _CALM_S

    def sample(self, clock: Callable[[], float]) -> MemorySample:
        """Take a sample."""
        begin = clock()
        self.used = self._measure(self._limit)
        cost = clock() - begin
        step = _STEP_BYTES if self._limit is None else min(_STEP_BYTES, self._limit // 16)
        grew, self._previous = self.used - self._previous, self.used
        self._pause_s = _FAST_S if grew > step else min(_SLOW_S, self._pause_s * 2)
        changed = abs(self.used - self._last_reported) > step
        if changed:
            self._last_reported = self.used
        return MemorySample(self.used, changed, self._cause(), max(self._pause_s, cost * _MAX_COST_FRACTION))

    def snapshot(self, known: Mapping[str, int | None]) -> dict[str, int | None]:
        """Return the memory part of `info`, measured now.

        `known`, from the broker, has the limit and the memory available.
        """
        used = self._measure(None)
        limit, left = known.get("limit"), known.get("available")
        rest = [each for each in (left, None if limit is None else limit - used) if each is not None]
        return {"used": used, "limit": limit, "available": max(0, min(rest)) if rest else None}

    def _cause(self) -> str | None:
        if self._limit is None or self.used <= self._limit:
            return None
        limit = f"{self._limit // MIB} MiB (sandbox.memory-bytes)"
        return f"killed: its processes used {-(-self.used // MIB)} MiB, limit {limit}"

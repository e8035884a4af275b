"""How much memory a session uses, how often to look, and when that is too much.

A control group that counts memory also bounds it, and then this only tells. Where there is none, the worker looks at
its session's processes, and a session over its limit has to end.
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
_MAX_COST_FRACTION = 20  # a look may take one part in so many of the time
_STEP_BYTES = 8 * MIB  # a change that is told at once; what is smaller waits for the next beat

Measure = Callable[[int | None], int]  # bytes; the argument: from where on the figure has to be exact


def create_memory_watch(child: InterpreterProcess, confinement: SessionSandbox | None) -> MemoryWatch:
    """The watch over an interpreter and what it starts."""
    if confinement is not None and (group := confinement.wrapper.memory_group()) is not None:
        return MemoryWatch(lambda _: used_bytes(*group), None)
    tree = ProcessTree(child.outer_pid)
    limit = None if confinement is None else confinement.policy.limits.memory_bytes
    return MemoryWatch(lambda doubt: tree.memory(doubt, child.sandboxed_pid), limit)


class MemorySample(NamedTuple):
    """What one look gave."""

    used: int
    changed: bool  # by enough to be told now
    cause: str | None  # why the session has to end, if it has to
    pause_s: float  # until the next one


class MemoryWatch:
    """One session's. `limit` is None where something else bounds it, or nothing does."""

    def __init__(self, measure: Measure, limit: int | None) -> None:
        self._measure = measure
        self._limit = limit
        self._last_reported = 0
        self._previous = 0
        self._pause_s = _CALM_S
        self.used = 0

    @property
    def is_idle(self) -> bool:
        """Whether the next look is far off, so that code which begins to run makes it due soon."""
        return self._pause_s > _CALM_S

    def on_eval_start(self) -> float:
        """Something runs: the pause from now to the next look."""
        self._pause_s = _CALM_S
        return _CALM_S

    def sample(self, clock: Callable[[], float]) -> MemorySample:
        """Look now."""
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
        """For `info`: measured now. `known`, from the broker, has the limit, and what is left beyond this session."""
        used = self._measure(None)
        limit, left = known.get("limit"), known.get("available")
        rest = [each for each in (left, None if limit is None else limit - used) if each is not None]
        return {"used": used, "limit": limit, "available": max(0, min(rest)) if rest else None}

    def _cause(self) -> str | None:
        if self._limit is None or self.used <= self._limit:
            return None
        return f"killed: its processes used {-(-self.used // MIB)} MiB, limit {self._limit // MIB} MiB"

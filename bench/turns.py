"""Contenders measured in turns, round by round: a machine that slows down slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

WARM_UP = 3  # calls at the start of each turn that are not counted


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Amount to measure."""

    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        """One number or the other."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One contender: the call that is timed, how often in each round, and what to do untimed before each call."""

    call: Callable[[], object]
    each: int
    before: Callable[[], object] | None = None


def time_in_turns(
    calls: Mapping[str, TimedCall], rounds: int, silence_s: float = 0.0, warm_up: int = WARM_UP
) -> dict[str, list[float]]:
    """Seconds of every call, by contender. With a silence the caller sleeps that long before each call."""
    clock = time.perf_counter
    seconds: dict[str, list[float]] = {who: [] for who in calls}
    for _ in range(rounds):
        for who, turn in calls.items():
            kept = seconds[who]
            for count in range(-warm_up if turn.before is None else 0, turn.each):
                if turn.before is not None:
                    turn.before()
                if silence_s:
                    time.sleep(silence_s)
                began = clock()
                turn.call()
                took = clock() - began
                if count >= 0:
                    kept.append(took)
    return seconds


def scale(samples: list[float], factor: float) -> list[float]:
    """Return the samples in another unit."""
    return [sample * factor for sample in samples]

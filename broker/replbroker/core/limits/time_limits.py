"""Time limits of evals, and the pace of the sweep."""

from __future__ import annotations

from typing import NamedTuple

from replwire.agents import AgentRule
from replwire.limits import Limits
from replwire.ops import Queueable

_MORE_TIME = "raise `timeout-ms`, or use `wait-ms` to run the code in the background"


class TimeLimit(NamedTuple):
    """The time that an eval may run.

    Attributes:
        ms: Milliseconds.
        maximum: The name of the setting that allows no more; None if the request asked for less than it may have.
        longest_ms: The time that a background job of the same client may run.
        notice: A sentence for the client at once, when it gets less than it asked for.
    """

    ms: int
    maximum: str | None
    longest_ms: int
    notice: str | None = None

    def hint(self) -> str:
        """Return a sentence for the client when the time is over."""
        if self.maximum is None:
            return _MORE_TIME
        return f"{self._bound()}; {self._more()}"

    def with_notice(self, asked_ms: int) -> TimeLimit:
        """Return the same limit with a notice that the request asked for more."""
        return self._replace(notice=f"`timeout-ms` {asked_ms} is reduced: {self._bound()}; {self._more()}")

    def _bound(self) -> str:
        return f"the limit is {self.ms} ms ({self.maximum})"

    def _more(self) -> str:
        if self.longest_ms > self.ms:
            return f"use `wait-ms` to run the code in the background for up to {self.longest_ms} ms"
        return "run it in smaller parts, or ask the operator to raise the limit"


def time_limit(request: Queueable, limits: Limits, rule: AgentRule | None) -> TimeLimit:
    """Return the time limit of an eval: the time it asks for, within what limits and the agent's rule allow."""
    is_job = request.wait_ms is not None or request.long
    setting = "max-job-time-ms" if is_job else "max-eval-time-ms"
    most = limits.max_job_time_ms if is_job else limits.max_eval_time_ms
    longest = limits.max_job_time_ms
    if rule is not None:
        longest = min(longest, rule.timeout_ms)
        if rule.timeout_ms < most:
            setting, most = f"timeout-ms of the rule for agent {rule.name}", rule.timeout_ms
    asked = request.timeout_ms
    if asked is not None and asked < most:
        return TimeLimit(asked, None, longest)
    limit = TimeLimit(most, setting, longest)
    return limit if asked is None or asked == most else limit.with_notice(asked)


def sweep_pace(limits: Limits, *idle_ms: int) -> float:
    """Return the seconds between two sweeps: a fraction of every time limit that the sweep enforces."""
    quarters = [each / 4 for each in (limits.session_idle_timeout_ms, *idle_ms)]
    paces = [limits.worker_silence_ms / 3, *quarters, 15_000]
    return max(0.05, min(pace for pace in paces if pace > 0) / 1000)

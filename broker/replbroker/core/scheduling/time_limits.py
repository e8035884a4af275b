"""How long an eval may run, what its caller is told of it, and how often limits are looked after."""

from __future__ import annotations

from typing import NamedTuple

from replwire.agents import AgentRule
from replwire.limits import Limits
from replwire.ops import Queueable

_MORE_TIME = "ask for more time with `timeout-ms`, or send `wait-ms` and read the answer later"


class TimeLimit(NamedTuple):
    """`notice` is told at once, when less is given than was asked for; `hint` when the time is over."""

    ms: int
    hint: str
    notice: str | None


def time_limit(request: Queueable, limits: Limits, rule: AgentRule | None) -> TimeLimit:
    """The time of one eval: what it asks for, within what it may have."""
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
        return TimeLimit(asked, _MORE_TIME, None)
    bound = f"{most} ms is the most here ({setting})"
    more = (
        f"with `wait-ms` it may run for {longest} ms, and its answer is read later"
        if longest > most
        else ("run it in smaller parts, or have the operator raise that")
    )
    notice = None if asked is None or asked == most else f"`timeout-ms` {asked} is cut: {bound}; {more}"
    return TimeLimit(most, f"{bound}: {more}", notice)


def sweep_pace(limits: Limits, idle_exit_ms: int) -> float:
    """Seconds between two sweeps: well within whatever they look after."""
    paces = [limits.worker_silence_ms / 3, limits.session_idle_timeout_ms / 4, idle_exit_ms / 4, 15_000]
    return max(0.05, min(pace for pace in paces if pace > 0) / 1000)

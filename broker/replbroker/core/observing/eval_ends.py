"""The end of an eval as events report it."""

from __future__ import annotations

from typing import Any

from replbroker.core.sessions.eval_task import EvalTask
from replbroker.core.sessions.output_summary import OutputSummary
from replwire import events
from replwire.faults import find_fault

_DEATH_ERRORS = ("worker-lost", "session-reset")


def classify_end(words: list[str]) -> events.EvalStatus:
    """Return how an eval ended, in one word, from the status of its final message."""
    if "interrupted" in words:
        return "cancelled"
    if "error" not in words:
        return "ok"
    fault = find_fault(words)
    if fault is None:
        return "error"
    return "timeout" if fault.code == "timeout" else "died" if fault.code in _DEATH_ERRORS else "refused"


def build_finished(task: EvalTask, end: events.EvalStatus, summary: OutputSummary) -> dict[str, Any]:
    """Return the fields of the event `eval/finished`."""
    return {
        "eval": task.eval_id,
        "agent": task.agent_label,
        "status": end,
        "reply_status": task.status,
        "duration_ms": task.duration_ms,
        "epoch": task.epoch,
        **summary.summary(),
    }

"""Outcomes of evals: the number that a worker sends, as a status for clients and a counter."""

from __future__ import annotations

from replwire.link import Outcome

STATUS_OF: dict[int, list[str]] = {
    Outcome.OK: ["done"],
    Outcome.ERROR: ["done", "error"],
    Outcome.INTERRUPTED: ["done", "interrupted"],
    Outcome.TIMEOUT: ["done", "error", "timeout"],
}
COUNTED_AS: dict[int, str] = {outcome: f"evals.{outcome.name.lower()}" for outcome in Outcome}

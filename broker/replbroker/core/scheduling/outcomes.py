"""How an eval's outcome, which a worker tells as a number, is told to clients and counted."""

from __future__ import annotations

from replwire.link import Outcome

STATUS_OF: dict[int, list[str]] = {
    Outcome.OK: ["done"],
    Outcome.ERROR: ["done", "error"],
    Outcome.INTERRUPTED: ["done", "interrupted"],
    Outcome.TIMEOUT: ["done", "error", "timeout"],
}
COUNTED_AS: dict[int, str] = {outcome: f"evals.{outcome.name.lower()}" for outcome in Outcome}

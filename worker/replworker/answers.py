"""What an eval is answered with: from the interpreter's result to the value message and the last one."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from replwire.faults import Refusal
from replwire.link import Claim, Outcome
from replwire.replies import Ex, Reply
from replworker.jobs import Job
from replworker.runtimes import frames


class Ending(NamedTuple):
    """The value message, if there is a value to show, the last message, and what the broker needs to know."""

    value: Reply | None
    done: Reply
    outcome: Outcome


def compose(
    job: Job, result: frames.Result, claim: Claim, epoch: int, lost: str | None, background: int, ns: str
) -> Ending:
    """`lost` is how the session's last worker went, to be told once; `background` counts bytes nobody has read."""
    dropped = job.output.dropped() + result.value_dropped
    done = Reply(
        id=job.request_id,
        status=["done"],
        eval_id=job.eval_id,
        epoch=epoch,
        state="lost" if lost else "kept",
        cause=lost,
        hint=result.hint,
        ephemeral=True if claim.ephemeral else None,
        changed=result.changed or None,
        duration_ms=round((time.monotonic() - job.started) * 1000, 3),
        truncated=True if dropped else None,
        images_dropped=result.images_dropped or None,
        dropped_bytes=dropped or None,
        background_bytes=background or None,
    )
    if job.limit_ms is not None:
        done.status, done.err = ["done", "error", "timeout"], f"eval timed out after {job.limit_ms} ms"
        done.max_eval_time_ms, done.hint = job.limit_ms, job.time_hint
        return Ending(None, done, Outcome.TIMEOUT)
    if result.outcome == "interrupted" and job.cancelled:
        done.status = ["done", "interrupted"]
        return Ending(None, done, Outcome.INTERRUPTED)
    if job.op == "env":
        return _tool_ending(result, done)
    if result.outcome != "ok":
        done.status, done.ex = ["done", "error"], result.ex
        done.err = _sentence(result.ex) if result.ex else "KeyboardInterrupt"
        done.stacktrace, done.traceback = result.stacktrace, result.traceback
        return Ending(None, done, Outcome.ERROR)
    if result.value is None and result.repr_error is None and not result.mime:
        return Ending(None, done, Outcome.OK)
    value = Reply(
        id=job.request_id,
        value=result.value,
        repr_error=result.repr_error,
        ns=ns,
        mime=None if result.mime is None else rich(result.mime),
    )
    value.truncated = True if result.value_dropped else None
    return Ending(value, done, Outcome.OK)


def rich(bundle: dict[str, str]) -> dict[str, object]:
    """A bundle as Jupyter has it: JSON types as JSON, everything else as text."""
    return {kind: _json(text) if kind.endswith("json") else text for kind, text in bundle.items()}


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # said by user code to be JSON
        return text


def cut_short(job: Job, refusal: Refusal, claim: Claim, epoch: int) -> Ending:
    """The end of a job that never came to run."""
    done = Reply(
        id=job.request_id,
        status=["done", "error", refusal.word],
        err=refusal.err,
        eval_id=job.eval_id,
        epoch=epoch,
        state="kept",
        ephemeral=True if claim.ephemeral else None,
        **refusal.more,
    )
    if job.limit_ms is not None:
        done.status, done.max_eval_time_ms = ["done", "error", "timeout"], job.limit_ms
        return Ending(None, done, Outcome.TIMEOUT)
    if job.cancelled:
        done.status, done.err = ["done", "interrupted"], None
        return Ending(None, done, Outcome.INTERRUPTED)
    return Ending(None, done, Outcome.ERROR)


def _tool_ending(result: frames.Result, done: Reply) -> Ending:
    """A package tool ran: its exit code says how that went."""
    if result.outcome == "ok" and result.value == "0":
        return Ending(None, done, Outcome.OK)
    done.status, done.err = ["done", "error"], f"the package tool ended with exit code {result.value}"
    if result.outcome != "ok":
        done.err = _sentence(result.ex) if result.ex else "KeyboardInterrupt"
    return Ending(None, done, Outcome.ERROR)


def _sentence(ex: Ex) -> str:
    return f"{ex.type}: {ex.message}" if ex.message else ex.type

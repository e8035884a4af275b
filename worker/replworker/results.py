"""What an eval is answered with: from the interpreter's result to the value message and the last one."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from replwire.faults import RequestError
from replwire.link import AssignBody, Outcome
from replwire.replies import ExceptionInfo, Reply
from replworker.evals import EvalRecord
from replworker.runtimes import frames


class FinalReplies(NamedTuple):
    """The value message, if there is a value to show, the last message, and what the broker needs to know."""

    value: Reply | None
    done: Reply
    outcome: Outcome


def build_result(
    job: EvalRecord,
    result: frames.ResultFrame,
    claim: AssignBody,
    epoch: int,
    lost: str | None,
    background: int,
    ns: str,
) -> FinalReplies:
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
        return FinalReplies(None, done, Outcome.TIMEOUT)
    if result.outcome == "interrupted" and job.is_cancelled:
        done.status = ["done", "interrupted"]
        return FinalReplies(None, done, Outcome.INTERRUPTED)
    if job.op == "env":
        return _package_tool_result(result, done)
    if result.outcome != "ok":
        done.status, done.ex = ["done", "error"], result.ex
        done.err = _exception_text(result.ex) if result.ex else "KeyboardInterrupt"
        done.stacktrace, done.traceback = result.stacktrace, result.traceback
        return FinalReplies(None, done, Outcome.ERROR)
    if result.value is None and result.repr_error is None and not result.mime:
        return FinalReplies(None, done, Outcome.OK)
    value = Reply(
        id=job.request_id,
        value=result.value,
        repr_error=result.repr_error,
        ns=ns,
        mime=None if result.mime is None else decode_bundle(result.mime),
    )
    value.truncated = True if result.value_dropped else None
    return FinalReplies(value, done, Outcome.OK)


def decode_bundle(bundle: dict[str, str]) -> dict[str, object]:
    """A bundle as Jupyter has it: JSON types as JSON, everything else as text."""
    return {kind: _json(text) if kind.endswith("json") else text for kind, text in bundle.items()}


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # said by user code to be JSON
        return text


def build_error_result(job: EvalRecord, refusal: RequestError, claim: AssignBody, epoch: int) -> FinalReplies:
    """The end of a job that never came to run."""
    done = Reply(
        id=job.request_id,
        status=["done", "error", refusal.code],
        err=refusal.message,
        eval_id=job.eval_id,
        epoch=epoch,
        state="kept",
        ephemeral=True if claim.ephemeral else None,
        **refusal.fields,
    )
    if job.limit_ms is not None:
        done.status, done.max_eval_time_ms = ["done", "error", "timeout"], job.limit_ms
        return FinalReplies(None, done, Outcome.TIMEOUT)
    if job.is_cancelled:
        done.status, done.err = ["done", "interrupted"], None
        return FinalReplies(None, done, Outcome.INTERRUPTED)
    return FinalReplies(None, done, Outcome.ERROR)


def _package_tool_result(result: frames.ResultFrame, done: Reply) -> FinalReplies:
    """A package tool ran: its exit code says how that went."""
    if result.outcome == "ok" and result.value == "0":
        return FinalReplies(None, done, Outcome.OK)
    done.status, done.err = ["done", "error"], f"the package tool ended with exit code {result.value}"
    if result.outcome != "ok":
        done.err = _exception_text(result.ex) if result.ex else "KeyboardInterrupt"
    return FinalReplies(None, done, Outcome.ERROR)


def _exception_text(ex: ExceptionInfo) -> str:
    return f"{ex.type}: {ex.message}" if ex.message else ex.type

"""Results of evals: from the interpreter's frame to the value message and the final reply."""

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
    """Value message, if there is a value to show, final reply, and outcome for the broker."""

    value: Reply | None
    done: Reply
    outcome: Outcome


class StateReport(NamedTuple):
    """State of the earlier variables that a client was not told of yet."""

    state: str = "kept"
    cause: str | None = None
    checkpoint: int | None = None
    not_restored: list[str] = []  # noqa: RUF012 - never changed


def build_result(
    job: EvalRecord,
    result: frames.ResultFrame,
    assignment: AssignBody,
    epoch: int,
    report: StateReport,
    background: int,
    ns: str,
    hint: str | None,
) -> FinalReplies:
    """Build the replies to a finished eval.

    Args:
        job: the eval
        result: the interpreter's result frame
        assignment: the session's assignment
        epoch: current epoch of the session
        report: what has happened to the earlier variables, reported once
        background: unread bytes of background output
        ns: namespace that the code ran in
        hint: what the sandbox has to do with its failure
    """
    done = _final_reply(job, epoch, report, job.output.dropped() + result.value_dropped)
    done.hint = result.hint or hint
    done.ephemeral = True if assignment.ephemeral else None
    done.changed, done.images_dropped = result.changed or None, result.images_dropped or None
    done.background_bytes = background or None
    if job.limit_ms is not None:
        done.status, done.err = ["done", "error", "timeout"], f"eval timed out after {job.limit_ms} ms"
        done.max_eval_time_ms, done.hint = job.limit_ms, job.time_hint
        return FinalReplies(None, done, Outcome.TIMEOUT)
    if result.outcome == "interrupted" and job.is_cancelled:
        done.status = ["done", "interrupted"]
        return FinalReplies(None, done, Outcome.INTERRUPTED)
    if job.op == "env":
        return _test_result(result, done)
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
    """Decode a MIME bundle as Jupyter does: JSON types as JSON, everything else as text."""
    return {kind: _json(text) if kind.endswith("json") else text for kind, text in bundle.items()}


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # user code claimed it was JSON
        return text


def build_error_result(job: EvalRecord, refusal: RequestError, assignment: AssignBody, epoch: int) -> FinalReplies:
    """Build the replies to an eval that never ran."""
    done = Reply(
        id=job.request_id,
        status=["done", "error", refusal.code],
        err=refusal.message,
        eval_id=job.eval_id,
        epoch=epoch,
        state="kept",
        ephemeral=True if assignment.ephemeral else None,
        **refusal.fields,
    )
    if job.limit_ms is not None:
        done.status, done.max_eval_time_ms = ["done", "error", "timeout"], job.limit_ms
        return FinalReplies(None, done, Outcome.TIMEOUT)
    if job.is_cancelled:
        done.status, done.err = ["done", "interrupted"], None
        return FinalReplies(None, done, Outcome.INTERRUPTED)
    return FinalReplies(None, done, Outcome.ERROR)


def build_package_result(job: EvalRecord, error: str | None, epoch: int, report: StateReport) -> FinalReplies:
    """Build the reply to a package action.

    Args:
        job: the eval of the action
        error: why it failed, or None
        epoch: current epoch of the session
        report: what has happened to the earlier variables, reported once
    """
    done = _final_reply(job, epoch, report, job.output.dropped())
    if job.limit_ms is not None and error is not None:
        done.status, done.err = ["done", "error", "timeout"], f"installing timed out after {job.limit_ms} ms"
        done.max_eval_time_ms, done.hint = job.limit_ms, job.time_hint
        return FinalReplies(None, done, Outcome.TIMEOUT)
    if job.is_cancelled and error is not None:
        done.status = ["done", "interrupted"]
        return FinalReplies(None, done, Outcome.INTERRUPTED)
    if error is not None:
        done.status, done.err = ["done", "error"], error
        return FinalReplies(None, done, Outcome.ERROR)
    return FinalReplies(None, done, Outcome.OK)


def _final_reply(job: EvalRecord, epoch: int, report: StateReport, dropped: int) -> Reply:
    """Return the final reply of an eval that ran, without its outcome."""
    return Reply(
        id=job.request_id,
        status=["done"],
        eval_id=job.eval_id,
        epoch=epoch,
        state=report.state,
        cause=report.cause,
        checkpoint=report.checkpoint,
        not_restored=report.not_restored or None,
        duration_ms=round((time.monotonic() - job.started) * 1000, 3),
        truncated=True if dropped else None,
        dropped_bytes=dropped or None,
    )


def _test_result(result: frames.ResultFrame, done: Reply) -> FinalReplies:
    """Set the result of a project's tests from their exit code."""
    if result.outcome == "ok" and result.value == "0":
        return FinalReplies(None, done, Outcome.OK)
    done.status, done.err = ["done", "error"], f"the tests ended with exit code {result.value}"
    if result.outcome != "ok":
        done.err = _exception_text(result.ex) if result.ex else "KeyboardInterrupt"
    return FinalReplies(None, done, Outcome.ERROR)


def _exception_text(ex: ExceptionInfo) -> str:
    return f"{ex.type}: {ex.message}" if ex.message else ex.type

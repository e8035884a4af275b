"""Messages about an eval besides its output: queued, truncated, lost, still running."""

from __future__ import annotations

import re
from collections.abc import Iterator

from replctl.client.result import Result
from replctl.durations import format_duration
from replwire.faults import ExitCode
from replwire.quantities import count_of
from replwire.replies import Reply

# The broker's hints name wire fields; at a shell the same advice is an option or a command.
_WORDS = {
    "`timeout-ms`": "--timeout",
    "`wait-ms`": "--wait",
    "`ls-sessions`": "replctl ls",
    "`close`": "replctl close",
    "`env`": "replctl env activate",
    "`remove-environment`": "replctl env remove",
}
_MILLISECONDS = re.compile(r"(`timeout-ms` )(\d+)|\b(\d+) ms\b")  # a plain number is seconds at a shell
_HINTS = {
    "session-not-found": "replctl ls lists sessions, replctl new NAME opens one",
    "session-already-exists": "use replctl new --reuse for the existing session",
    "approval-needed": "a person must approve it: replctl eval asks at a terminal",
    "checkpoint-not-found": "replctl checkpoints SESSION lists them; replctl rollback SESSION N goes back to one",
    "plan-mode": "only read-only requests are allowed; replctl mode SESSION normal ends plan mode",
}


def hint_for(code: str | None, hint: str | None) -> str | None:
    """Return the advice for a fault in terms of the command line, or None."""
    return _HINTS.get(code or "", for_shell(hint)) if hint else None


def for_shell(text: str) -> str:
    """Replace field names in the broker's text by command-line options."""
    text = _MILLISECONDS.sub(lambda found: f"{found[1] or ''}{format_duration(int(found[2] or found[3]))}", text)
    for field, option in _WORDS.items():
        text = text.replace(field, option)
    return text


def plan_notice(reply: Reply | None) -> str | None:
    """Describe since when and why a session is in plan mode; None for other refusals."""
    if reply is None or reply.entered_at is None:
        return None
    return f"in plan mode since {reply.entered_at}" + (f": {reply.entered_reason}" if reply.entered_reason else "")


def input_needed_notice(session: str) -> str:
    """Return the message for code that waits for input when no input is available."""
    return f'the code waits for input: replctl stdin {session} "text"'


def status_notice(reply: Reply) -> str | None:
    """Return the message for a status that arrives while the eval is in progress, or None."""
    status = reply.status or []
    if "queued" in status:
        ahead = reply.queue_position or 0
        return f"queued behind {count_of(ahead, 'eval')}" if ahead else "queued for a slot"
    if reply.notice is not None:
        return for_shell(reply.notice)
    if "output-dropped" in status:
        dropped = reply.dropped_bytes or 0
        return f"skipped {count_of(dropped, 'byte')} of live output that came too fast; replctl read shows them"
    return None


def opening_notices(result: Result) -> Iterator[str]:
    """Yield messages to print before the value or the traceback, which should be read last."""
    if result.notice:
        yield for_shell(result.notice)
    if result.created and not result.ephemeral:
        earlier = (
            f"; the previous session of this name was lost: {result.cause}"
            if result.cause and result.state != "lost"
            else ""
        )
        where = f" in {result.cwd}" if result.cwd else ""
        yield f"new session {result.session!r}{where}{earlier}"


def end_notices(result: Result) -> Iterator[str]:
    """Yield messages for the end of an eval, most important first."""
    name = result.session
    if result.exit_status:
        yield result.exit_status
    if result.repr_error:
        yield f"the value cannot be shown because its repr raised {result.repr_error}"
    yield from _outcome_notices(result, name)
    if (result.ok or result.exit is ExitCode.RAISED) and result.state in ("lost", "rolled-back"):
        cause = result.cause or "unknown cause"
        if result.state == "lost":
            yield f"earlier state was lost: {cause}; this ran in a fresh worker{_epoch(result)}"
        else:
            yield f"the session had gone back to checkpoint {result.checkpoint} before: {cause}{_epoch(result)}"
    if result.state == "restored":
        yield f"variables were restored: {result.cause}{_epoch(result)}"
    if result.state in ("rolled-back", "restored"):
        yield from rollback_notices(result.undone_evals, result.not_restored)
    if result.undone:
        yield "this eval was undone since: its effects on the session are gone"
    if result.ignored_fields:
        yield f"ignored by the broker as unknown: {', '.join(result.ignored_fields)}"
    if result.truncated and not result.dropped_bytes and result.offset is not None:
        yield f"more output: --offset {result.offset}"
    elif result.truncated:
        yield f"output truncated, {count_of(result.dropped_bytes, 'byte')} dropped"
    if result.background_bytes:
        yield f"the session printed {count_of(result.background_bytes, 'byte')} between evals: replctl read {name} 0"


def _outcome_notices(result: Result, name: str | None) -> Iterator[str]:
    kept = "state kept" if result.state == "kept" else f"{_state(result)}{_because(result)}{_epoch(result)}"
    if result.exit is ExitCode.TIMED_OUT:
        if result.duration_ms is None and result.error:
            yield result.error  # it did not run
        else:
            limit = result.max_eval_time_ms or result.duration_ms or 0
            yield f"{'interrupted' if result.state == 'kept' else 'killed'} after {format_duration(limit)}, {kept}"
    elif result.exit is ExitCode.INTERRUPTED:
        yield f"interrupted, {kept}"
    elif result.exit is ExitCode.WORKER_LOST:
        yield f"{result.error or 'worker lost'}; {kept}"
    elif result.exit is ExitCode.RUNNING:
        yield f"still running as eval {result.eval_id}; replctl read {name} {result.eval_id} --wait 60s"
    if not result.ok and (hint := hint_for(result.code, result.hint)):
        yield f"hint: {hint}"


def rollback_notices(undone: list[int] | None, not_restored: list[str] | None) -> Iterator[str]:
    """Yield messages about what a rollback has undone, and what did not come back."""
    if undone:
        yield f"undone: {'eval' if len(undone) == 1 else 'evals'} {', '.join(map(str, undone))}"
    for each in not_restored or []:
        yield f"not restored: {each}"


def _state(result: Result) -> str:
    return f"state rolled back to checkpoint {result.checkpoint}" if result.state == "rolled-back" else "state lost"


def _because(result: Result) -> str:
    return f": {result.cause}" if result.cause and result.cause not in (result.error or "") else ""


def _epoch(result: Result) -> str:
    return f" (epoch {result.epoch})" if result.epoch is not None else ""

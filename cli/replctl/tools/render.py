"""Results and refusals as text for a model: value first, then output, then what is new about the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.tools.base import FollowUps, ToolImage, ToolResult, ToolSettings
from replctl.tools.text_budget import clean, fold, join_ends, split_budget
from replctl.tools.trace_text import fold_traceback
from replwire.faults import ExitCode
from replwire.replies import TRUNCATED, Reply

# The broker's hints name wire fields; a model has tools.
_TOOL_HINTS = {
    "session-not-found": "sending code to a session creates it; the list of sessions shows existing ones",
    "path-not-allowed": "code reads what its session sees: eval exec(open(path).read()); or set session.load-paths",
    "checkpoint-not-found": 'info(what="checkpoints") lists them; reset(to=…) goes back to one',
    "eval-not-found": "the list of jobs shows existing evals; output is lost with its worker",
    "broker-lost": "the code may run on; the list of jobs shows what ran: look there before sending it again",
    "unknown-op": "the running broker is older than this tool: `replctl shutdown` lets a new one start",
}
_IMAGE_MIMES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_TEXT_MIMES = ("text/markdown", "text/plain")  # shown instead of a value's repr
MIMES = ["image/png", "image/jpeg", "text/markdown", "text/plain"]


class EvalRenderer:
    """Renders an eval's result as text for a model.

    Args:
        result: The eval's result.
        settings: Sizes.
        calls: Calls that the model has for what follows.
        waited: Seconds that the call waited.
        tail: End of an output that was truncated live.
        silent: Text for an eval without output.
        whole: Show tracebacks with all frames, and output up to the budget.
    """

    def __init__(
        self,
        result: Result,
        settings: ToolSettings,
        calls: FollowUps,
        waited: float | None = None,
        tail: str = "",
        silent: str = "",
        whole: bool = False,
    ) -> None:
        self._result, self._settings, self._calls, self._waited = result, settings, calls, waited
        self._tail, self._silent, self._whole = tail, silent, whole
        self._folded = 0
        self._truncated = False  # truncated somewhere without a note on how to get the rest

    def render(self, asking: Reply | None = None) -> ToolResult:
        """Return the text for a model, the structured data for a program, and the images."""
        result = self._result
        if asking is not None:
            result.eval_id, result.session = asking.eval_id, result.session or asking.name or asking.session
        images, left = _images(result, self._settings)
        parts = self._parts()
        budget = self._settings.budget
        if not self._whole and sum(len(text) for _, text in parts) > budget:
            budget = self._settings.flood
        rooms = split_budget([len(text) for _, text in parts], budget)
        shown = {label: self._fold(label, text, room) for (label, text), room in zip(parts, rooms, strict=True)}
        status = "waiting-for-input" if asking is not None else status_of(result)
        lines = [shown[""]] if "" in shown else []
        lines += [f"{label}:\n{text}" if len(shown) > 1 else text for label, text in shown.items() if label]
        if self._silent and shown.keys() <= {""}:
            lines.append(self._silent)
        lines += [f"[{note}]" for note in self._notes(status, left)]
        if not lines:
            lines.append("done" if not images else f"{len(images)} picture(s)")
        return ToolResult(
            text="\n".join(lines),
            structured=self._structured(status, shown),
            images=images,
            error=status not in ("ok", "running", "waiting-for-input"),
        )

    def _parts(self) -> list[tuple[str, str]]:
        """Return the cleaned parts: the value or the error under "", and each stream under its name."""
        result = self._result
        parts = []
        head = result.traceback or (result.error if result.error and not result.ok else None) or _value(result)
        if head:
            text = clean(head.rstrip("\n")).text
            parts.append(("", self._fold_trace(text) if result.traceback else text))
        for label, text in (("output", result.out), ("stderr", result.err)):
            if text.strip("\n"):
                shown, folded = clean(text.rstrip("\n"))
                self._folded += folded
                parts.append((label, shown))
        return parts

    def _fold_trace(self, text: str) -> str:
        """Fold library frames, and say where the call with all of them is."""
        folded = fold_traceback(text)
        more = self._read_call()
        if self._whole or not folded.left_out or more is None:
            return text if self._whole else folded.text
        head, mark, tail = folded.text.rpartition(" library frame")
        return head + mark + tail.replace("\n", f": {more}\n", 1)

    def _fold(self, label: str, text: str, room: int) -> str:
        more = self._paging_note() if label else ""  # a value cannot be paged
        if label == "output" and self._tail:
            size = len(self._result.out.encode()) + (self._result.dropped_bytes or 0)
            head, tail = text.removesuffix(TRUNCATED), clean(self._tail.rstrip("\n")).text
            return join_ends(head, tail, f"{size} bytes", room, self._settings.line, more)
        folded = fold(text, room, self._settings.line, more)
        self._truncated = self._truncated or (folded.cut_chars > 0 and not (more and more in folded.text))
        return folded.text

    def _read_call(self, more: str = "") -> str | None:
        """Return the call that reads this eval, or None if its output is not kept, or the set has no such call."""
        result = self._result
        if result.ephemeral or result.eval_id is None or result.state == "lost":
            return None
        return self._calls.read_call(result.session, result.eval_id, more)

    def _paging_note(self) -> str:
        if self._result.ephemeral:
            return "; an ephemeral session keeps nothing"
        more = self._read_call("offset=0 or grep=…")
        return "" if more is None else f"; page or search it: {more}"

    def _notes(self, status: str, left: int) -> Iterator[str]:
        result = self._result
        yield from self._session_notes()
        if result.repr_error:
            yield f"the value cannot be shown: its repr raised {result.repr_error}"
        if self._truncated:
            yield f"truncated{self._paging_note() if result.out or result.err else '; print a part of it'}"
        if self._folded:
            yield f"progress bar updates folded: {self._folded}"
        yield from (f"picture: {note}" for note in result.notes)
        if left:
            yield f"{left} more picture(s) were too large or too many"
        if status == "running":
            yield self._running_note()
        elif status == "waiting-for-input":
            answer = self._calls.stdin_call(result.session)
            yield f"eval {result.eval_id} waits for input" + (f": {answer}" if answer else "")
        if result.ignored_fields:
            yield f"ignored by the broker as unknown: {', '.join(result.ignored_fields)}"
        if result.background_bytes:
            more = self._calls.read_call(result.session, 0)
            yield f"{result.background_bytes} bytes were printed between evals" + (f": {more}" if more else "")
        if result.truncated and not self._tail:
            least = "at least " if (result.value or "").endswith(TRUNCATED) else ""  # the rest was never rendered
            yield f"{least}{result.dropped_bytes or 0} bytes were not {'kept' if self._whole else 'sent'}"
        if (not result.ok or result.exit_status) and result.hint and status not in ("running", "waiting-for-input"):
            yield f"hint: {_TOOL_HINTS.get(result.code or '', for_tools(result.hint))}"
        if facts := ", ".join(self._footer(status)):
            yield facts

    def _session_notes(self) -> Iterator[str]:
        """Yield what the session has not told yet: that it is new, its directory, a notice."""
        result = self._result
        where = f" in {result.cwd}" if result.cwd else ""
        if result.created and not result.ephemeral:
            before = result.cause if result.state != "lost" else None  # else the cause is that of this eval's end
            lost = f"; the previous session of this name was lost: {before}" if before else ""
            yield f"new session {result.session}{where}{lost}"
        elif where and not result.ephemeral:
            yield f"session {result.session}{where}"
        if result.notice:
            yield for_tools(result.notice)

    def _running_note(self) -> str:
        result = self._result
        if result.queue_position is not None:
            now = f"eval {result.eval_id} is queued, {result.queue_position} before it"
        else:
            after = f" after {self._waited:g} s" if self._waited else ""
            now = f"still running{after} as eval {result.eval_id}"
        more = self._read_call(f"offset={result.offset}" if result.offset else "")
        return now if more is None else f"{now}; wait for more: {more}"

    def _footer(self, status: str) -> Iterator[str]:
        """Yield the parts of the last line: what is not as after any other eval."""
        result = self._result
        if status in ("timeout", "interrupted", "lost", "reset", "rolled-back"):
            yield status
        if result.duration_ms is not None and result.duration_ms >= 1000:
            yield f"{result.duration_ms / 1000:.1f} s"
        if result.state == "lost":
            closed = "session-closed" in result.status
            now = "the session is closed" if closed else f"the session has a fresh worker (epoch {result.epoch})"
            cause = result.cause or "the worker was lost"
            why = "" if cause in (result.error or "") else f"{cause}; "
            yield f"state lost: {why}earlier variables and imports are lost, {now}"
        elif result.state == "rolled-back":
            undone = ", ".join(map(str, result.undone_evals or [])) or "none"
            because = f": {result.cause}" if result.cause and result.cause not in (result.error or "") else ""
            yield (
                f"state rolled-back to checkpoint {result.checkpoint}{because}; undone evals: {undone}; "
                f"earlier variables are kept (epoch {result.epoch})"
            )
            yield from (f"not restored: {each}" for each in result.not_restored or [])
        elif result.state == "restored":
            yield f"state restored: {result.cause}; variables are those of its snapshot (epoch {result.epoch})"
            yield from (f"not restored: {each}" for each in result.not_restored or [])
        elif status in ("timeout", "interrupted") and not result.ephemeral:
            yield f"state {result.state}"

    def _structured(self, status: str, shown: dict[str, str]) -> dict[str, Any]:
        result = self._result
        facts: dict[str, Any] = {
            "status": status,
            "session": result.session,
            "eval_id": result.eval_id,
            "epoch": result.epoch,
            "state": result.state,
            "checkpoint": result.checkpoint,
            "undone_evals": result.undone_evals,
            "cwd": result.cwd,
            "value": shown.get("") if result.ok else None,
            "error": shown.get("") if not result.ok and status not in ("running", "waiting-for-input") else None,
            "out": shown.get("output"),
            "err": shown.get("stderr"),
            "cause": result.cause,
            "duration_ms": result.duration_ms,
            "changed": result.changed,
            "offset": result.offset,
            "dropped_bytes": result.dropped_bytes,
            "files": result.files or None,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


def for_tools(text: str) -> str:
    """Replace field names in the broker's text by tool arguments."""
    return text.replace("`timeout-ms`", "`timeout`").replace("`wait-ms`", "a wait")


def status_of(result: Result) -> str:
    """Return the outcome of an eval in one word."""
    if result.exit is ExitCode.WORKER_LOST:
        return "reset" if result.code == "session-reset" else "rolled-back" if result.state == "rolled-back" else "lost"
    words = {
        ExitCode.OK: "ok",
        ExitCode.RUNNING: "running",
        ExitCode.RAISED: "error",
        ExitCode.INTERRUPTED: "interrupted",
    }
    return words.get(result.exit) or result.code or "error"


def error_result(error: ReplError) -> ToolResult:
    """Return the result for a refused request, or a lost broker."""
    reply = error.reply
    parts = [error.message if error.code == "error" else f"{error.code}: {error.message}"]
    if reply is not None and reply.cause and reply.cause not in error.message:
        parts[0] += f" ({reply.cause})"
    if (hint := _TOOL_HINTS.get(error.code, error.hint)) is not None:
        parts.append(f"[hint: {hint}]")
    if error.retry_after_ms is not None:
        parts.append(f"[try again in {error.retry_after_ms / 1000:g} s]")
    facts: dict[str, Any] = {"status": error.code, "error": error.message}
    if error.retry_after_ms is not None:
        facts["retry_after_ms"] = error.retry_after_ms
    return ToolResult(text="\n".join(parts), structured=facts, error=True)


def _value(result: Result) -> str | None:
    """Return the best text of the value: its own form in Markdown or plain text, else its repr."""
    kind, text = next(iter((result.mime or {}).items()), ("", None))
    if (
        len(result.mime or {}) == 1 and kind in _TEXT_MIMES and isinstance(text, str)
    ):  # with several, the text is a note about the others
        return text
    return result.display_value or result.exit_status


def _images(result: Result, settings: ToolSettings) -> tuple[list[ToolImage], int]:
    """Return the images within the limits, one per bundle, and the number of others."""
    dropped = result.images_dropped or 0
    taken: list[ToolImage] = []
    for bundle in ([result.mime] if result.mime else []) + (result.images or []):
        found = [ToolImage(kind, bundle[kind]) for kind in _IMAGE_MIMES if isinstance(bundle.get(kind), str)]
        fitting = [each for each in found if len(each.data) <= settings.image_bytes]
        if fitting and len(taken) < settings.images:
            taken.append(fitting[0])
        elif found:
            dropped += 1
    return taken, dropped

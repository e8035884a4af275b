"""What a model is told of an eval, or of a refusal: the result first, then the output, then the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.tools.base import ToolImage, ToolResult, ToolSettings
from replctl.tools.text_budget import clean, fold, split_budget
from replwire.faults import ExitCode
from replwire.replies import TRUNCATED, Reply

# The broker's hints speak of fields of the wire; a model has tools.
_TOOL_HINTS = {
    "session-not-found": "code that is sent to a session opens it; the list of sessions has those there are",
    "path-not-allowed": "code reads what its session sees: eval exec(open(path).read()); or set session.load-paths",
    "eval-not-found": "the list of jobs has the evals there are; what one printed goes with its worker",
    "broker-lost": "if it has ended, all sessions and variables are gone; the list of sessions has those there are",
    "unknown-op": "the broker that runs is older than this tool: `replctl shutdown` lets a new one start",
}
_IMAGE_MIMES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_TEXT_MIMES = ("text/markdown", "text/plain")  # shown in place of the repr of a value
MIMES = ["image/png", "image/jpeg", "text/markdown", "text/plain"]


class EvalRenderer:
    """How an eval is told: its session as the caller named it, how long was waited, and what its end is called.

    `silent` is said when no output is there to be shown.
    """

    def __init__(
        self, result: Result, settings: ToolSettings, waited: float | None = None, tail: str = "", silent: str = ""
    ) -> None:
        self._result, self._settings, self._waited, self._tail = result, settings, waited, tail
        self._silent = silent
        self._folded = 0
        self._truncated = False  # somewhere, and the text there does not say how to get the rest

    def render(self, asking: Reply | None = None) -> ToolResult:
        """The text for a model, the facts for a program, the pictures."""
        result = self._result
        if asking is not None:
            result.eval_id, result.session = asking.eval_id, result.session or asking.name or asking.session
        images, left = _images(result, self._settings)
        parts = self._parts()
        rooms = split_budget([len(text) for _, text in parts], self._settings.budget)
        shown = {label: self._fold(label, text, room) for (label, text), room in zip(parts, rooms, strict=True)}
        status = "waiting-for-input" if asking is not None else status_of(result)
        lines = [shown[""]] if "" in shown else []
        lines += [f"{label}:\n{text}" if len(shown) > 1 else text for label, text in shown.items() if label]
        if self._silent and shown.keys() <= {""}:
            lines.append(self._silent)
        elif not lines and status == "ok" and not result.repr_error:
            lines.append("done: no value, no output" if not images else f"{len(images)} picture(s)")
        lines += [f"[{note}]" for note in self._notes(status, left)]
        return ToolResult(
            text="\n".join(lines),
            structured=self._structured(status, shown),
            images=images,
            error=status not in ("ok", "running", "waiting-for-input"),
        )

    def _parts(self) -> list[tuple[str, str]]:
        """What the code made, cleaned: the value or the error under "", and each stream under its name."""
        result = self._result
        parts = []
        head = result.traceback or (result.error if result.error and not result.ok else None) or _value(result)
        if head:
            parts.append(("", clean(head.rstrip("\n")).text))
        out = result.out
        if self._tail:
            out = f"{out.removesuffix(TRUNCATED)}\n…[{result.dropped_bytes or 0} bytes not kept]…\n{self._tail}"
        for label, text in (("output", out), ("stderr", result.err)):
            if text.strip("\n"):
                shown, folded = clean(text.rstrip("\n"))
                self._folded += folded
                parts.append((label, shown))
        return parts

    def _fold(self, label: str, text: str, room: int) -> str:
        more = self._paging_note() if label else ""  # a value has no pages of its own
        if label and self._result.dropped_bytes and (self._tail or TRUNCATED in text):
            more = f", and {self._result.dropped_bytes} bytes beside them that were not kept{more}"
        folded = fold(text, room, self._settings.line, more)
        self._truncated = self._truncated or (folded.cut_chars > 0 and not (more and more in folded.text))
        return folded.text

    def _paging_note(self) -> str:
        result = self._result
        if result.ephemeral:
            return "; a throw-away session keeps nothing"
        if result.eval_id is None or result.state == "lost":
            return ""
        return f"; page or search it: read(session={result.session!r}, eval_id={result.eval_id}, offset=0 or grep=…)"

    def _notes(self, status: str, left: int) -> Iterator[str]:
        result = self._result
        name = result.session
        if result.created and not result.ephemeral:
            before = result.cause if result.state != "lost" else None  # else it is how this one went
            yield f"new session {name}" + (f"; the one before it was lost: {before}" if before else "")
        if result.notice:
            yield for_tools(result.notice)
        if result.repr_error:
            yield f"the value has no text: its repr raised {result.repr_error}"
        if self._truncated and (more := self._paging_note()):
            yield f"some was cut{more}"
        if self._folded:
            yield f"progress bar updates folded: {self._folded}"
        yield from (f"picture: {note}" for note in result.notes)
        if left:
            yield f"{left} picture(s) more were too large or too many"
        if status == "running":
            after = f" after {self._waited:g} s" if self._waited else ""
            offset = f", offset={result.offset}" if result.offset else ""
            more = f"read(session={name!r}, eval_id={result.eval_id}{offset})"
            if result.queue_position is None:
                yield f"still running{after} as eval {result.eval_id}, it goes on; wait for more: {more}"
            else:
                yield f"eval {result.eval_id} is queued, {result.queue_position} before it; it will run; wait: {more}"
        elif status == "waiting-for-input":
            yield f"eval {result.eval_id} waits for input: stdin(session={name!r}, text=…)"
        if result.ignored_fields:
            yield f"the broker does not know, and ignored: {', '.join(result.ignored_fields)}"
        if result.background_bytes:
            yield f"{result.background_bytes} bytes were printed between evals: read(session={name!r}, eval_id=0)"
        if result.truncated:
            least = "at least " if (result.value or "").endswith(TRUNCATED) else ""  # the rest was never made
            yield f"{least}{result.dropped_bytes or 0} bytes of it were not kept"
        if not result.ok and result.hint and status not in ("running", "waiting-for-input"):
            yield f"hint: {_TOOL_HINTS.get(result.code or '', for_tools(result.hint))}"
        yield ", ".join(self._footer(status))

    def _footer(self, status: str) -> Iterator[str]:
        result = self._result
        if status in ("timeout", "interrupted", "lost", "reset"):
            yield status
        where = f" in {result.cwd}" if result.cwd else ""
        yield "throw-away session" if result.ephemeral else f"session {result.session}{where}"
        if result.eval_id is not None and not result.ephemeral:
            yield f"eval {result.eval_id}"
        if result.duration_ms is not None:
            yield f"{result.duration_ms:.0f} ms" if result.duration_ms < 1000 else f"{result.duration_ms / 1000:.1f} s"
        if result.state == "lost":
            closed = "session-closed" in result.status
            now = "the session is closed" if closed else f"a fresh worker serves the session (epoch {result.epoch})"
            yield (
                f"state lost: {result.cause or 'the worker is gone'}; variables and imports from before are gone, {now}"
            )
        elif result.state is not None and not result.ephemeral:
            yield f"state {result.state}"

    def _structured(self, status: str, shown: dict[str, str]) -> dict[str, Any]:
        result = self._result
        facts: dict[str, Any] = {
            "status": status,
            "session": result.session,
            "eval_id": result.eval_id,
            "epoch": result.epoch,
            "state": result.state,
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
    """What the broker says of fields, with the arguments that tools have for them."""
    return text.replace("`timeout-ms`", "`timeout`").replace("`wait-ms`", "a wait")


def status_of(result: Result) -> str:
    """How an eval ended, in one word."""
    if result.exit is ExitCode.WORKER_LOST:
        return "reset" if result.code == "session-reset" else "lost"
    words = {
        ExitCode.OK: "ok",
        ExitCode.RUNNING: "running",
        ExitCode.RAISED: "error",
        ExitCode.INTERRUPTED: "interrupted",
    }
    return words.get(result.exit) or result.code or "error"


def error_result(error: ReplError) -> ToolResult:
    """What a model is told when a request was refused, or when the broker went away."""
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
    """The value's best text: a table in Markdown is worth more to a model than one drawn with spaces."""
    kind, text = next(iter((result.mime or {}).items()), ("", None))
    if (
        len(result.mime or {}) == 1 and kind in _TEXT_MIMES and isinstance(text, str)
    ):  # with more, a text is a note on them
        return text
    return result.display_value or result.exit_status


def _images(result: Result, settings: ToolSettings) -> tuple[list[ToolImage], int]:
    """The pictures within the bounds, one a bundle, and how many more there were."""
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

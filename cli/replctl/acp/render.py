"""Results as the content blocks that editors show. No I/O."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from replctl.client.errors import ReplError
from replctl.client.result import Result
from replctl.durations import format_duration
from replwire.faults import ExitCode
from replwire.quantities import count_of

TITLE_CHARS = 60
MAX_SHOWN = 32 * 1024  # characters of output in a tool call; every update repeats all of it
MAX_IMAGE = 5 * 1024 * 1024  # characters of one image in base64
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # requested rich forms, best first

# Text that Markdown leaves unchanged. Other text goes into a code block: `__main__` would turn bold.
_PLAIN = re.compile(r"(?!\s|[-+]\s|---|>|=|\d+[.)](?:\s|\Z))[\w '\"(){}\[\]:;,.?!/%@+=>-]*\Z")
_EMPHASIS = re.compile(r"__|\b_|_\b|\]\(")  # or a link
_SUBSET = (
    "value",
    "status",
    "error",
    "ex",
    "state",
    "epoch",
    "eval_id",
    "session",
    "duration_ms",
    "changed",
    "cause",
    "hint",
    "truncated",
    "dropped_bytes",
    "repr_error",
    "background_bytes",
)


class LiveOutput:
    """Live output of a tool call, limited to its head and tail."""

    def __init__(self) -> None:
        self._head = ""
        self._tail = ""
        self._missing = 0

    def add(self, text: str) -> None:
        """Add output; stdout and stderr in order of arrival."""
        room = MAX_SHOWN // 2 - len(self._head)
        self._head += text[:room]
        self._tail += text[room:] if room > 0 else text
        if (over := len(self._tail) - MAX_SHOWN) > 0:  # trim occasionally, not for every piece
            self._missing += over + MAX_SHOWN // 2
            self._tail = self._tail[-(MAX_SHOWN // 2) :]

    def text(self) -> str:
        """Return the visible output."""
        tail = self._tail[-(MAX_SHOWN // 2) :]
        missing = self._missing + len(self._tail) - len(tail)
        gap = f"\n…[{missing} characters not shown]…\n" if missing else ""
        return self._head + gap + tail


def text_block(text: str) -> dict[str, Any]:
    """Return a text content block."""
    return {"type": "text", "text": text}


def tool_content(*texts: str) -> list[dict[str, Any]]:
    """Return texts as the content of a tool call, each in a code block."""
    return [{"type": "content", "content": text_block(fenced(text))} for text in texts if text.strip()]


def fenced(text: str) -> str:
    """Return a Markdown code block, whatever backticks the text contains."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip(chr(10))}\n{fence}"


def as_markdown(text: str) -> str:
    """Return the text as Markdown: unchanged if Markdown would not alter it, else in a code block."""
    return text if _PLAIN.match(text) and not _EMPHASIS.search(text) else fenced(text)


def title(code: str) -> str:
    """Return a one-line title for the code; never empty."""
    line = next((line for line in code.splitlines() if line.strip()), "")
    flat = " ".join(line.split()) or "eval"
    return flat if len(flat) <= TITLE_CHARS else flat[: TITLE_CHARS - 1] + "…"


def raw_output(result: Result) -> dict[str, Any]:
    """Return a result as `rawOutput`: everything but the output, which is in the content."""
    data = {name: value for name in _SUBSET if (value := getattr(result, name)) is not None}
    whole: dict[str, Any] = msgspec.to_builtins(data)
    return {name.replace("_", "-"): value for name, value in whole.items()}


def images(result: Result) -> list[dict[str, Any]]:
    """Return the figures and the value's image as content blocks, as far as they can be sent."""
    found = []
    for bundle in [*result.images, result.mime or {}]:
        kind = next((kind for kind in IMAGES if isinstance(bundle.get(kind), str)), None)
        if kind is not None and 0 < len(bundle[kind]) <= MAX_IMAGE:
            found.append({"type": "image", "mimeType": kind, "data": bundle[kind]})
    return found


def messages(result: Result, had_turns: bool) -> list[str]:
    """Return the messages for a finished eval, besides its output.

    Args:
        result: The finished eval.
        had_turns: True if the session ran something before.
    """
    texts = [result.notice] if result.notice else []
    if result.ok and (value := result.display_value or result.exit_status):
        texts.append(as_markdown(value))
    texts += [f"Picture: {note}" for note in result.notes]
    if result.repr_error:
        texts.append(f"The value cannot be shown: its repr raised {as_markdown(result.repr_error)}")
    if not result.ok:
        texts.append(as_markdown(_ending(result)))
        if result.hint and result.exit is ExitCode.RAISED:
            texts.append(result.hint)
        if result.ex is not None and result.ex.type == "EOFError":
            texts.append("Code run from a prompt gets no input.")
    texts += _state(result, had_turns)
    if result.truncated:
        texts.append(f"{count_of(result.dropped_bytes, 'byte')} of output dropped.")
    if result.background_bytes:
        texts.append(
            f"The session printed {count_of(result.background_bytes, 'byte')} between evals; `/read 0` shows them."
        )
    return texts


def _ending(result: Result) -> str:
    if result.exit is ExitCode.INTERRUPTED:
        return "interrupted"
    if result.exit is ExitCode.TIMED_OUT and result.max_eval_time_ms and result.duration_ms is not None:
        return f"stopped at its time limit of {format_duration(result.max_eval_time_ms)}"
    return result.error or result.code or "failed"


def _state(result: Result, had_turns: bool) -> list[str]:
    because = f": {result.cause}" if result.cause else ""
    if result.state == "lost":
        fresh = "This ran in a fresh worker" if result.ok else "The next eval gets a fresh worker"
        return [f"Earlier variables are lost{because}. {fresh} (epoch {result.epoch})."]
    if result.state == "rolled-back":
        undone = ", ".join(map(str, result.undone_evals or []))
        texts = [f"The session is back at checkpoint {result.checkpoint}{because} (epoch {result.epoch})."]
        texts += [f"Undone evals: {undone}."] if undone else []
        return texts + [f"Not restored: {each}." for each in result.not_restored or []]
    if result.state == "restored":
        texts = [f"Variables were restored{because} (epoch {result.epoch})."]
        return texts + [f"Not restored: {each}." for each in result.not_restored or []]
    if result.created and had_turns:
        return [f"The session no longer existed{because}. This ran in a new one; earlier variables are lost."]
    return []


def error_text(error: ReplError) -> str:
    """Return the message for a request that the broker refused, or that was cut off by its exit."""
    text = error.message
    if error.hint:
        text += f". {error.hint}"
    if error.retry_after_ms is not None:
        text += f" (try again in {format_duration(error.retry_after_ms)})"
    return as_markdown(text)

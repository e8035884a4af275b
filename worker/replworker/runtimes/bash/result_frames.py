"""Result frames created by the codec or parsed from Bash's answers."""

from __future__ import annotations

import re

from replwire.replies import ExceptionInfo, StackFrame
from replworker.runtimes import frames

MESSAGE_CHARS = 4096
_LINE = re.compile(r"\bline (\d{1,9}): ")

RequestFrame = (
    frames.AssignFrame
    | frames.EvalFrame
    | frames.InterruptFrame
    | frames.VarsFrame
    | frames.ClearFrame
    | frames.CompleteFrame
    | frames.LookupFrame
    | frames.DumpFrame
    | frames.RestoreFrame
)


def interrupted(n: int, changed: list[str] | None = None) -> frames.ResultFrame:
    ex, text = ExceptionInfo("KeyboardInterrupt", ""), "KeyboardInterrupt\n"
    return frames.ResultFrame(n=n, outcome="interrupted", ex=ex, stacktrace=[], traceback=text, changed=changed or [])


def syntax_error(frame: frames.EvalFrame, text: str) -> frames.ResultFrame:
    line = _LINE.search(text)
    first = text.split("\n")[0].removeprefix(f"{frame.name}: ").strip()
    ex = ExceptionInfo("SyntaxError", first[:MESSAGE_CHARS] or "the code is incomplete")
    stack = [StackFrame("", frame.name, int(line[1]))] if line else []
    return frames.ResultFrame(
        n=frame.n, outcome="error", ex=ex, stacktrace=stack, traceback=(text or f"{frame.name}: {ex.message}") + "\n"
    )


def failure_for(frame: RequestFrame) -> frames.FrameEvent:
    """Return the reply if Bash repeatedly returns to its prompt without one."""
    why = "bash was interrupted on every attempt"
    if isinstance(frame, frames.AssignFrame):
        return frames.AssignedFrame(frame.n, why)
    if isinstance(frame, frames.VarsFrame):
        return frames.VariablesFrame(frame.n, [], 0)
    if isinstance(frame, frames.ClearFrame):
        return frames.ClearedFrame(frame.n, 0)
    if isinstance(frame, frames.CompleteFrame):
        return frames.CompletionsFrame(frame.n, frame.pos, [])
    if isinstance(frame, frames.LookupFrame):
        return frames.FoundFrame(n=frame.n, found=False)
    if isinstance(frame, frames.DumpFrame | frames.RestoreFrame):
        return frames.DumpedFrame(n=frame.n, error=why)
    return interrupted(frame.n)


def build_found(frame: frames.LookupFrame, kind: str, text: str, place: str) -> frames.FoundFrame:
    if not kind:
        return frames.FoundFrame(n=frame.n, found=False)
    file, line, signature = None, None, None
    if kind == "function":
        where = place.split(" ", 2)  # name, line, file
        if len(where) == 3 and where[1].isdigit():
            line, file = int(where[1]), where[2]
    elif kind == "file":
        file = place
    elif kind in ("builtin", "keyword"):
        head, _, rest = text.partition("\n")
        signature, text = head.partition(": ")[2], rest
    return frames.FoundFrame(
        n=frame.n, found=True, name=frame.symbol, type=kind, doc=text or None, signature=signature, file=file, line=line
    )

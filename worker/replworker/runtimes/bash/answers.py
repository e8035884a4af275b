"""Answers that the codec makes up, and those that it reads out of bash's own words."""

from __future__ import annotations

import re

from replwire.replies import Ex, Frame
from replworker.runtimes import frames

MESSAGE_CHARS = 4096
_LINE = re.compile(r"\bline (\d{1,9}): ")

Asked = (
    frames.Claim
    | frames.Eval
    | frames.Interrupt
    | frames.Vars
    | frames.Clear
    | frames.Complete
    | frames.Lookup
    | frames.Dump
    | frames.Restore
)


def interrupted(n: int, changed: list[str] | None = None) -> frames.Result:
    ex, told = Ex("KeyboardInterrupt", ""), "KeyboardInterrupt\n"
    return frames.Result(n=n, outcome="interrupted", ex=ex, stacktrace=[], traceback=told, changed=changed or [])


def syntax_error(frame: frames.Eval, told: str) -> frames.Result:
    line = _LINE.search(told)
    first = told.split("\n")[0].removeprefix(f"{frame.name}: ").strip()
    ex = Ex("SyntaxError", first[:MESSAGE_CHARS] or "the code ends before it is whole")
    stack = [Frame("", frame.name, int(line[1]))] if line else []
    return frames.Result(
        n=frame.n, outcome="error", ex=ex, stacktrace=stack, traceback=(told or f"{frame.name}: {ex.message}") + "\n"
    )


def failed(frame: Asked) -> frames.Event:
    """The answer when bash comes back to its prompt again and again without one."""
    why = "bash was interrupted each time it was asked"
    if isinstance(frame, frames.Claim):
        return frames.Claimed(frame.n, why)
    if isinstance(frame, frames.Vars):
        return frames.Variables(frame.n, [], 0)
    if isinstance(frame, frames.Clear):
        return frames.Cleared(frame.n, 0)
    if isinstance(frame, frames.Complete):
        return frames.Completions(frame.n, frame.pos, [])
    if isinstance(frame, frames.Lookup):
        return frames.Found(n=frame.n, found=False)
    if isinstance(frame, frames.Dump | frames.Restore):
        return frames.Dumped(n=frame.n, error=why)
    return interrupted(frame.n)


def found(frame: frames.Lookup, kind: str, told: str, place: str) -> frames.Found:
    if not kind:
        return frames.Found(n=frame.n, found=False)
    file, line, signature = None, None, None
    if kind == "function":
        where = place.split(" ", 2)  # name, line, file
        if len(where) == 3 and where[1].isdigit():
            line, file = int(where[1]), where[2]
    elif kind == "file":
        file = place
    elif kind in ("builtin", "keyword"):
        head, _, rest = told.partition("\n")
        signature, told = head.partition(": ")[2], rest
    return frames.Found(
        n=frame.n, found=True, name=frame.symbol, type=kind, doc=told or None, signature=signature, file=file, line=line
    )

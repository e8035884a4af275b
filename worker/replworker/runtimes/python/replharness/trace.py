"""Tracebacks of user code: bounded, without frames of the harness."""

from __future__ import annotations

import os
import sys

from . import SEALED
from .bounds import MESSAGE_BYTES, NAME_CHARS, PATH_CHARS, cut_marked, cut_middle, plain, type_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable, Dict, List, Optional, Tuple

    from .bounds import HarnessLimits

__builtins__ = SEALED

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ENTRIES = tuple(_OURS + name for name in ("aio.py", "interrupts.py", "run.py"))
_CHAINED = 16  # exceptions examined per chain of causes and contexts
_GROUPED = 64  # exceptions examined in total, with group members
_DEPTH = 1000  # minimum recursion limit for rendering


class ExceptionText:
    """Text of an exception: type name, message, frames and traceback, each within its limit."""

    def __init__(self, exc: BaseException, limits: HarnessLimits) -> None:
        self.type = type_name(type(exc))
        self.message = _message(exc)
        self.stacktrace: List[Dict[str, Any]] = []
        try:
            text, frames = _deep_enough(lambda: _format(exc, limits.trace_frames))
            self.stacktrace = [
                {"func": plain(f.name[:NAME_CHARS]), "file": plain(f.filename[:PATH_CHARS]), "line": f.lineno or 0}
                for f in frames
            ]
        except BaseException:  # its str(), notes, __dir__, or a user's traceback.py may raise anything
            text = "%s: %s\n" % (self.type, self.message) if self.message else self.type + "\n"
        self.traceback = cut_middle(text, limits.trace_bytes)


def strip(exc: BaseException) -> None:
    """Remove the harness's frames from an exception and its chain."""
    for each in _family(exc)[0]:
        _set(each, "__traceback__", _without_harness(_get(each, "__traceback__")))


def prepare() -> None:
    """Import what formatting needs. Without it an exception is described in one line."""

    def load() -> None:
        import tokenize  # noqa: F401 - python 3.13 and later import it in the midst of the telling
        import traceback  # noqa: F401

    try:
        _deep_enough(load)
    except BaseException:
        pass


def _deep_enough(body: Callable[[], Any]) -> Any:
    """Run `body` with enough recursion depth, whatever limit the user set."""
    depth = sys.getrecursionlimit()
    if depth >= _DEPTH:
        return body()
    sys.setrecursionlimit(_DEPTH)
    try:
        return body()
    finally:
        sys.setrecursionlimit(depth)


def _message(exc: BaseException) -> str:
    try:
        return cut_marked(str(exc), MESSAGE_BYTES)
    except BaseException as failed:
        return "<str failed: %s>" % type_name(type(failed))


def _format(exc: BaseException, limit: int) -> Tuple[str, Any]:
    from traceback import TracebackException

    undo: List[Tuple[BaseException, str, Any]] = []
    family, ends = _family(exc)
    try:
        # TracebackException processes whole chains and stacks, so they are shortened meanwhile.
        for each in ends:
            for name in ("__cause__", "__context__", "__suppress_context__"):
                undo.append((each, name, _get(each, name)))
            _set(each, "__cause__", None)
            _set(each, "__context__", None)
        hidden: Dict[int, int] = {}
        for each in family:
            tb = _get(each, "__traceback__")
            short, hidden[id(each)] = _shorten(tb, limit)
            if hidden[id(each)]:
                undo.append((each, "__traceback__", tb))
                _set(each, "__traceback__", short)
        report = TracebackException(type(exc), exc, _get(exc, "__traceback__"))
        frames = list(report.stack)
        _mark(report, exc, hidden, limit)
        return "".join(report.format()), frames
    finally:
        for each, name, value in reversed(undo):
            _set(each, name, value)


def _mark(report: Any, exc: BaseException, hidden: Dict[int, int], limit: int) -> None:
    """Add a line about omitted frames to each shortened stack."""
    todo = [(report, exc)]
    while todo:
        one, each = todo.pop()
        count = hidden.get(id(each), 0)
        if count:
            one.stack = _elided_summary(one.stack, limit // 2, count)
        for name in ("__cause__", "__context__"):
            if getattr(one, name, None) is not None:
                todo.append((getattr(one, name), _get(each, name)))
        members = getattr(one, "exceptions", None)
        if members:
            todo.extend(zip(members, _members(each)))  # noqa: B905 - strict= is newer than 3.8


def _elided_summary(stack: Any, half: int, count: int) -> Any:
    from traceback import StackSummary

    class _ElidedSummary(StackSummary):
        def format(self, **options: Any) -> List[str]:
            head, tail = StackSummary.from_list(self[:half]), StackSummary.from_list(self[half:])
            middle = "  ... %d frame%s not shown\n" % (count, "" if count == 1 else "s")
            return [*head.format(**options), middle, *tail.format(**options)]

    gap = _ElidedSummary()  # from_list always creates a StackSummary
    gap.extend(stack)
    return gap


def _family(exc: BaseException) -> Tuple[List[BaseException], List[BaseException]]:
    """Return an exception and its chain, within limits, and those whose own chains are omitted."""
    seen = {id(exc)}
    family: List[BaseException] = []
    ends: List[BaseException] = []
    todo = [(exc, 0)]
    while todo:
        each, depth = todo.pop()
        family.append(each)
        links = [_get(each, "__cause__"), _get(each, "__context__")]
        if depth == _CHAINED or len(family) + len(todo) >= _GROUPED:
            if links != [None, None]:
                ends.append(each)
            continue
        for link in (*links, *_members(each)[: _GROUPED - len(family)]):
            if link is not None and id(link) not in seen:
                seen.add(id(link))
                todo.append((link, depth + 1))
    return family, ends


def _members(exc: BaseException) -> Tuple[BaseException, ...]:
    # Not exc.exceptions, which may be a user's property.
    group = SEALED.get("BaseExceptionGroup")
    if group is None or not issubclass(type(exc), group):
        return ()
    members = group.__dict__["exceptions"].__get__(exc)
    return members if type(members) is tuple else ()


def _get(exc: BaseException, name: str) -> Any:
    return BaseException.__dict__[name].__get__(exc)


def _set(exc: BaseException, name: str, value: Any) -> None:
    BaseException.__dict__[name].__set__(exc, value)


def _without_harness(tb: Optional[TracebackType]) -> Optional[TracebackType]:
    """Remove frames that led into user code, and those of the harness's streams."""
    entries = list(_entries(tb))
    start = 0
    for at, entry in enumerate(entries):
        if entry.tb_frame.f_code.co_filename in _ENTRIES:
            start = at + 1
    theirs = [e for e in entries[start:] if not e.tb_frame.f_code.co_filename.startswith(_OURS)]
    after = None
    for here in reversed(theirs):
        if here.tb_next is not after:
            here.tb_next = after
        after = here
    return after


def _shorten(tb: Optional[TracebackType], limit: int) -> Tuple[Optional[TracebackType], int]:
    """Shorten a traceback to `limit` entries, copying the head and sharing the tail; return the number omitted."""
    entries = list(_entries(tb))
    hidden = len(entries) - limit
    if hidden <= 0:
        return tb, 0
    half = limit // 2
    short = entries[half + hidden]
    for entry in reversed(entries[:half]):
        short = type(entry)(short, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return short, hidden


def _entries(tb: Optional[TracebackType]) -> Any:
    while tb is not None:
        yield tb
        tb = tb.tb_next

"""Text of a value: repr(), bounded while it is created."""

from __future__ import annotations

from itertools import islice

from . import SEALED
from .bounds import CUT_MARK, cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set, Tuple

__builtins__ = SEALED

_BRACKETS: Dict[type, Tuple[str, str, str]] = {
    list: ("[", "]", "[...]"),
    tuple: ("(", ")", "(...)"),
    set: ("{", "}", "set(...)"),
    frozenset: ("frozenset({", "})", "frozenset(...)"),
    dict: ("{", "}", "{...}"),
}
_EMPTY: Dict[type, str] = {set: "set()", frozenset: "frozenset()"}
_TEXTS = (str, bytes, bytearray)
_BOUNDED = (*_BRACKETS, *_TEXTS)


def render(value: Any, limit: int) -> Tuple[str, int]:
    """Return repr(value) within `limit` UTF-8 bytes and the bytes cut (at least 1 if the rest was not created).

    Raises whatever the repr of a contained object raises.
    """
    kind = type(value)
    if kind in _BOUNDED and not _fits(value, limit):
        text = bounded(value, limit)
        kept, dropped = cut(text, limit)
        if dropped:
            # Minimum length of the whole: a character per item, and a comma and a space between items.
            width = 1 if kind in _TEXTS else 6 if kind is dict else 3
            dropped = max(dropped, len(value) * width - len(kept.encode("utf-8")))
    else:
        kept, dropped = cut(repr(value), limit)
    return (kept + CUT_MARK, dropped) if dropped else (kept, 0)


def bounded(value: Any, limit: int) -> str:
    """Return the first `limit` characters of repr(value), or slightly more; all if it is shorter."""
    walk = _Walk(limit)
    try:
        walk.visit(value)
    except _Full:
        pass
    return "".join(walk.parts)


def _fits(value: Any, limit: int) -> bool:
    """Return whether to create the whole repr: False once it is certainly longer than `limit`."""
    left = limit
    stack = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind in _TEXTS:
            left -= len(item)
        elif kind is int:
            left -= 1 + (item.bit_length() >> 2)
        elif kind in _BRACKETS:
            left -= 2 * len(item)
            if left >= 0:
                stack.extend(item)
                if kind is dict:
                    stack.extend(item.values())
        else:
            left -= 1
        if left < 0:
            return False
    return True


class _Full(Exception):
    """The limit is reached."""


class _Walk:
    """Builds the repr of nested exact builtins piece by piece, up to the limit."""

    def __init__(self, limit: int) -> None:
        self.parts: List[str] = []
        self._remaining = limit
        self._open: Set[int] = set()

    def _put(self, text: str) -> None:
        self.parts.append(text)
        self._remaining -= len(text)
        if self._remaining < 0:
            raise _Full

    def visit(self, value: Any) -> None:
        kind = type(value)
        if kind in _TEXTS:
            self._put(repr(_prefix(value, self._remaining + 1)))
        elif kind in _BRACKETS:
            self._visit_items(value, kind)
        else:
            self._put(repr(value))

    def _visit_items(self, value: Any, kind: type) -> None:
        before, after, again = _BRACKETS[kind]
        if not value:
            self._put(_EMPTY.get(kind, before + after))
            return
        if id(value) in self._open:
            self._put(again)
            return
        self._open.add(id(value))
        self._put(before)
        # Copy as many items as fit: the repr of an item may change the container.
        first = True
        for item in list(islice(value.items() if kind is dict else value, self._remaining + 1)):
            if not first:
                self._put(", ")
            first = False
            if kind is dict:
                self.visit(item[0])
                self._put(": ")
                self.visit(item[1])
            else:
                self.visit(item)
        self._put(",)" if kind is tuple and len(value) == 1 else after)
        self._open.discard(id(value))


def _prefix(value: Any, size: int) -> Any:
    """Return the first `size` items of a str, bytes or bytearray such that repr keeps the quotes of the whole."""
    if len(value) <= size:
        return value
    single, double = ("'", '"') if type(value) is str else (b"'", b'"')
    quotes = value[:0]
    for quote in (single, double):
        if quote in value:
            quotes += quote  # beyond the shown part
    return value[:size] + quotes

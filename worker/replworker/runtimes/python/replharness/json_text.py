"""JSON text of user values, bounded while written."""

from __future__ import annotations

from _json import encode_basestring_ascii

from . import SEALED
from .bounds import plain, type_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Set

__builtins__ = SEALED


def json_text(value: Any, limit: int) -> str:
    """Encode a value as ASCII JSON; NaN and infinities become null.

    Container methods are not called, since a subclass may override them.

    Raises:
        ValueError: it is longer than `limit` characters or contains itself
        TypeError: a value has no JSON form
    """
    writer = _Writer(limit)
    writer.visit(value)
    return "".join(writer.parts)


class _Writer:
    def __init__(self, limit: int) -> None:
        self.parts: List[str] = []
        self._remaining = limit
        self._open: Set[int] = set()

    def _put(self, text: str) -> None:
        self.parts.append(text)
        self._remaining -= len(text)
        if self._remaining < 0:
            raise ValueError("too large")

    def visit(self, value: Any) -> None:
        kind = type(value)
        if value is None or kind is bool:
            self._put("null" if value is None else "true" if value else "false")
        elif issubclass(kind, str):
            self._put(encode_basestring_ascii(plain(value)))
        elif issubclass(kind, int):
            self._put(int.__repr__(value))
        elif issubclass(kind, float):
            text = float.__repr__(value)
            self._put("null" if text[-1] in "nf" else text)
        elif issubclass(kind, (list, tuple, dict)):
            self._visit_items(value)
        else:
            raise TypeError("%s is not JSON" % type_name(kind))

    def _visit_items(self, value: Any) -> None:
        if id(value) in self._open:
            raise ValueError("it holds itself")
        self._open.add(id(value))
        between = ""
        if issubclass(type(value), dict):
            self._put("{")
            for name, item in dict.items(value):
                if not issubclass(type(name), str):
                    raise TypeError("a name that is not text")
                self._put(between + encode_basestring_ascii(plain(name)) + ":")
                self.visit(item)
                between = ","
            self._put("}")
        else:
            self._put("[")
            for item in (list if issubclass(type(value), list) else tuple).__iter__(value):
                self._put(between)
                self.visit(item)
                between = ","
            self._put("]")
        self._open.discard(id(value))

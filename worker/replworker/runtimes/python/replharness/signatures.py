"""Signatures of callables, from code objects or the text of C functions."""

from __future__ import annotations

import sys

from . import SEALED
from .render import bounded
from .static_inspect import BUILTIN, C_METHODS, FUNCTION, METHOD, MISSING, class_dict, is_class, mro, own, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

__builtins__ = SEALED

SIGNATURE_CHARS = 1000
_DEFAULT_CHARS = 40
_SHOWN = (int, float, complex, bool, type(None), str, bytes)
_VARARGS, _VARKEYWORDS = 0x04, 0x08  # of co_flags
_WRAPPERS = 8
_type_text = type.__dict__["__text_signature__"].__get__


def signature(value: Any) -> Optional[str]:
    """Return `(a, b=1, *, c)`, or None if it cannot be determined without running user code."""
    callee = _callee(value)
    if callee is None:
        return None
    function, bound = callee
    if type(function) is FUNCTION:
        parts = _parts(function)[bound if function.__code__.co_argcount else 0 :]
        return "(%s)" % ", ".join(parts[1:] if parts[:1] == ["/"] else parts)[: SIGNATURE_CHARS - 2]
    line = _c_text(function)
    return None if line is None else _without_self(line)[:SIGNATURE_CHARS]


def keywords(value: Any) -> List[str]:
    """Return the names of parameters that can be given by keyword."""
    callee = _callee(value)
    if callee is None:
        return []
    function, bound = callee
    if type(function) is FUNCTION:
        code = function.__code__
        count = code.co_argcount + code.co_kwonlyargcount
        return list(code.co_varnames[max(bound, code.co_posonlyargcount) : count])
    line = _c_text(function)
    return [] if line is None else _c_keywords(_without_self(line))


def without_first(line: str) -> str:
    """Return the signature as called on an object, without `self`."""
    first, _, rest = line[1:-1].partition(",")
    if not first.isidentifier():
        return line
    rest = rest.strip()
    return "(%s)" % (rest[1:].lstrip(", ") if rest.startswith("/") else rest)


def _callee(value: Any) -> Optional[Tuple[Any, int]]:
    """Return the function that a call of `value` reaches, and how many leading parameters are bound."""
    bound = 0
    if type(value) is METHOD:
        value, bound = value.__func__, 1
    if type(value) in (staticmethod, classmethod):
        value, bound = value.__func__, int(type(value) is classmethod)
    if is_class(value):
        for kind in mro(value):
            for name in ("__init__", "__new__"):
                made = class_dict(kind).get(name, MISSING)
                if type(made) is staticmethod:
                    made = made.__func__
                if type(made) is FUNCTION:
                    return unwrapped(made), 1
            if _type_text(kind) is not None and kind is not object:
                return kind, 0
        return None
    value = unwrapped(value)
    known = type(value) is FUNCTION or type(value) is BUILTIN or type(value) in C_METHODS
    return (value, bound) if known else None


def unwrapped(function: Any) -> Any:
    """Return the function behind decorators, as noted by functools.wraps and C wrappers."""
    for _ in range(_WRAPPERS):
        inner = dict.get(own(function), "__wrapped__", MISSING)
        if type(inner) is not FUNCTION:
            break
        function = inner
    return function


def _c_text(function: Any) -> Optional[str]:
    return text(_type_text(function) if is_class(function) else function.__text_signature__)


def _without_self(line: str) -> str:
    """Return the text without implicit parameters: `$self`, `$module`."""
    if not line.startswith("($"):
        return line
    rest = line[1:-1].partition(",")[2].strip()
    rest = rest[1:].lstrip(", ") if rest.startswith("/") else rest
    return "(%s)" % rest


def _c_keywords(line: str) -> List[str]:
    names: List[str] = []
    for part in line[1:-1].split(","):  # a comma in a default yields a piece that is not an identifier
        name = part.partition("=")[0].strip()
        if name == "/":
            names = []
        elif name.isidentifier():
            names.append(name)
    return names


def _parts(function: Any) -> List[str]:
    code = function.__code__
    names, flags = code.co_varnames, code.co_flags
    count, only = code.co_argcount, code.co_kwonlyargcount
    noted = _notes(function)
    defaults = function.__defaults__ or ()
    parts = []
    for at, name in enumerate(names[:count]):
        value = defaults[at - count + len(defaults)] if at >= count - len(defaults) else MISSING
        parts.append(_part(name, noted, value))
        if at + 1 == code.co_posonlyargcount:
            parts.append("/")
    last = count + only
    if flags & _VARARGS:
        parts.append("*" + _part(names[last], noted, MISSING))
        last += 1
    elif only:
        parts.append("*")
    given = function.__kwdefaults__ or {}
    parts += [_part(name, noted, dict.get(given, name, MISSING)) for name in names[count : count + only]]
    if flags & _VARKEYWORDS:
        parts.append("**" + _part(names[last], noted, MISSING))
    return parts


def _part(name: str, noted: Callable[[str], str], default: Any) -> str:
    note = noted(name)
    if note:
        name += ": " + note
    if default is MISSING:
        return name
    shown = bounded(default, _DEFAULT_CHARS) if type(default) in _SHOWN and not _long(default) else "..."
    return name + (" = " if note else "=") + (shown if len(shown) <= _DEFAULT_CHARS else "...")


def _long(value: Any) -> bool:
    return type(value) is int and value.bit_length() > 128


def _notes(function: Any) -> Callable[[str], str]:
    # From Python 3.14 on annotations are code, which must not run.
    held: Dict[str, Any] = {} if sys.version_info >= (3, 14) else function.__annotations__

    def noted(name: str) -> str:
        note = dict.get(held, name, MISSING)
        if type(note) is str:
            return note[:_DEFAULT_CHARS]
        return str(type.__dict__["__name__"].__get__(note)) if type(note) is type else ""

    return noted

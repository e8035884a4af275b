"""Lookup of dotted names without running user code."""

from __future__ import annotations

import builtins
import sys

from . import SEALED
from .bounds import PATH_CHARS, cut, plain, type_name
from .signatures import SIGNATURE_CHARS, signature, unwrapped, without_first
from .static_inspect import (
    BUILTIN,
    C_METHODS,
    FUNCTION,
    METHOD,
    MISSING,
    MODULE,
    UnreadProperty,
    class_dict,
    is_class,
    is_given,
    is_module,
    items,
    mro,
    own,
    resolve,
    text,
    word,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

__builtins__ = SEALED

DOC_BYTES = 4096
METHODS = 50
_SYMBOL_CHARS = 1000
_doc_of_property = property.__dict__["__doc__"].__get__
_qualname = type.__dict__["__qualname__"].__get__


def lookup(namespace: Dict[str, Any], symbol: str, module: Optional[str]) -> Dict[str, Any]:
    """Return the fields of FoundFrame except `t` and `n`.

    `module` is an imported module, or a dotted name, to start from.
    """
    path = _path(symbol)
    roots: Tuple[Dict[str, Any], ...] = (namespace, builtins.__dict__)
    if module is not None:
        start = _start(namespace, module)
        if path is None or start is MISSING:
            return {"found": False}
        roots, path = ({"start": start},), ["start", *path]
    if path is None:
        return {"found": False}
    value, kind = resolve(roots, path)
    if value is MISSING:
        return {"found": False}
    raw = value.descriptor if type(value) is UnreadProperty else value
    inner = raw if is_class(raw) or is_module(raw) or type(raw) is FUNCTION else unwrapped(raw)
    file, line = _place(inner)
    doc = _doc(inner)
    shown = signature(raw)
    methods = [] if type(value) is UnreadProperty else _methods(value, path[-1], shown)
    if shown is not None and type(raw) is FUNCTION and is_given(resolve(roots, path[:-1] or path)[0], path[-1]):
        shown = without_first(shown)
    return {
        "found": True,
        "name": symbol,
        "type": kind if type(value) is UnreadProperty else type_name(type(value)),
        "doc": None if doc is None else cut(_dedented(doc), DOC_BYTES)[0],
        "signature": None if shown is None else plain(shown),
        "methods": methods,
        "file": None if file is None else plain(file[:PATH_CHARS]),
        "line": line,
    }


def _path(symbol: str) -> Optional[List[str]]:
    path = symbol.split(".")
    return path if len(symbol) <= _SYMBOL_CHARS and all(map(str.isidentifier, path)) else None


def _start(namespace: Dict[str, Any], module: str) -> Any:
    path = _path(module)
    if path is None:
        return MISSING
    loaded = sys.modules.get(module)
    if loaded is not None and is_module(loaded):
        return loaded
    value = resolve((namespace, builtins.__dict__), path)[0]
    return MISSING if type(value) is UnreadProperty else value


def _doc(value: Any) -> Optional[str]:
    kind = type(value)
    if kind is METHOD:
        return _doc(value.__func__)
    if kind is FUNCTION or kind is BUILTIN or kind in C_METHODS:
        return text(value.__doc__)
    if is_class(value):
        for each in mro(value)[: max(len(mro(value)) - 1, 1)]:
            doc = text(class_dict(each).get("__doc__"))
            if doc is not None:
                return doc
        return None
    if is_module(value):
        return text(own(value).get("__doc__"))
    if kind is property:
        return text(_doc_of_property(value)) or (None if value.fget is None else _doc(value.fget))
    return _doc(kind)


def _dedented(doc: str) -> str:
    """Remove the common indentation of all lines after the first."""
    doc = doc[: 2 * DOC_BYTES].expandtabs()
    lines = doc.split("\n")
    margins = [len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()]
    margin = min(margins) if margins else 0
    return "\n".join([lines[0].strip(), *(line[margin:].rstrip() for line in lines[1:])]).strip("\n")


def _methods(value: Any, name: str, shown: Optional[str]) -> List[str]:
    """Return a line for a function, or the public methods of a class or instance."""
    if is_module(value):
        return []
    kind = value if is_class(value) else type(value)
    if (shown is not None and not is_class(value)) or kind in (FUNCTION, METHOD, BUILTIN, *C_METHODS):
        return [plain(name + (shown or "(...)"))[:SIGNATURE_CHARS]]
    found: Dict[str, Any] = {}
    for each in mro(kind):
        if each is not object:
            for key, raw in items(class_dict(each)):
                if type(key) is str and key[:1] != "_":
                    found.setdefault(key, raw)
    lines = []
    for key in sorted(found):
        raw = found[key]
        if word(raw, True) == "method":
            line = signature(raw) or "(...)"
            lines.append(plain(key + (without_first(line) if type(raw) is FUNCTION else line))[:SIGNATURE_CHARS])
    return lines[:METHODS]


def _place(value: Any) -> Tuple[Optional[str], Optional[int]]:
    if type(value) is METHOD:
        value = value.__func__
    if type(value) is property and type(value.fget) is FUNCTION:
        value = value.fget
    if type(value) is FUNCTION:
        file = value.__code__.co_filename
        if file.startswith("<frozen "):
            file = text(value.__globals__.get("__file__")) or file
        return file, value.__code__.co_firstlineno
    if is_class(value):
        return _place_of_class(value)
    if type(value) is MODULE:
        file = text(own(value).get("__file__"))
        return file, None if file is None else 1
    return None, None


def _place_of_class(kind: type) -> Tuple[Optional[str], Optional[int]]:
    """Find the file of a class through its methods. Its line is known from Python 3.13 on."""
    held = class_dict(kind)
    line = held.get("__firstlineno__")
    prefix = _qualname(kind) + "."
    for _, raw in items(held):
        raw = raw.__func__ if type(raw) in (staticmethod, classmethod) else raw
        if type(raw) is FUNCTION and raw.__qualname__.startswith(prefix):
            return raw.__code__.co_filename, line if type(line) is int else None
    module = sys.modules.get(text(held.get("__module__")) or "")
    file = text(own(module).get("__file__")) if module is not None and is_module(module) else None
    return file, line if file is not None and type(line) is int else None

"""Static inspection of objects, bypassing properties, `__getattr__`, `__dir__` and metaclasses: no user code runs."""

from __future__ import annotations

import sys
from itertools import islice

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

__builtins__ = SEALED


class UnreadProperty:
    """Placeholder for the value of a property, which only user code could compute."""

    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor


WALK = 20_000  # names examined per dictionary
_COLUMNS = 1000
MISSING: Any = type("Missing", (), {})()

_class_dict = type.__dict__["__dict__"].__get__
mro = type.__dict__["__mro__"].__get__
_flags = type.__dict__["__flags__"].__get__
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
_GETSET: Any = type(type.__dict__["__dict__"])
_MEMBER: Any = type(type.__dict__["__basicsize__"])
MODULE: Any = type(sys)
FUNCTION: Any = type(lambda: 0)
_unread: Any = UnreadProperty(None)
METHOD: Any = type(_unread.__init__)
BUILTIN: Any = type(len)
C_METHODS: Tuple[Any, ...] = (type(str.join), type(object.__init__), type(dict.__dict__["fromkeys"]))
_CALLED = (FUNCTION, METHOD, BUILTIN, staticmethod, classmethod, type([].__len__), *C_METHODS)


def is_class(value: Any) -> bool:
    return issubclass(type(value), type)


def is_module(value: Any) -> bool:
    return issubclass(type(value), MODULE)


def own(value: Any) -> Dict[str, Any]:
    """Return the dictionary of a module or instance, or {} if it cannot be read statically."""
    for kind in mro(type(value)):
        found = _class_dict(kind).get("__dict__", MISSING)
        if found is not MISSING:
            if type(found) is _GETSET or type(found) is _MEMBER:
                held = _read(found, value)
                return held if issubclass(type(held), dict) else {}
            return {}  # a user's property
    return {}


def attribute(value: Any, name: str) -> Tuple[Any, str]:
    """Return the value and kind of an attribute; MISSING if there is none, UnreadProperty if it requires code."""
    if is_class(value):
        raw = _of_kinds(mro(value), name)
        if raw is MISSING:
            raw = _of_kinds(mro(type(value)), name)
        return (raw, "") if raw is MISSING else (_opened(raw), word(raw, True))
    shared = _of_kinds(mro(type(value)), name)
    if type(shared) is _MEMBER or (type(shared) is _GETSET and _of_c(_owner(shared))):
        held = _read(shared, value)  # a slot, or a field of a class written in C
        return (UnreadProperty(shared) if held is MISSING else held), "property"
    if shared is not MISSING and _of_kinds(mro(type(shared)), "__set__") is not MISSING:
        return UnreadProperty(shared), "property"
    held = dict.get(own(value), name, MISSING)
    if held is not MISSING:
        return held, word(held, False)
    if shared is MISSING:
        return shared, ""
    kind = word(shared, not is_module(value))
    return (UnreadProperty(shared) if kind == "property" else _opened(shared)), kind


def is_given(holder: Any, name: str) -> bool:
    """Return whether `holder.name` is a method bound to the holder."""
    if is_class(holder):
        return type(_of_kinds(mro(holder), name)) is classmethod
    if is_module(holder) or dict.get(own(holder), name, MISSING) is not MISSING:
        return False
    return type(_of_kinds(mro(type(holder)), name)) in (FUNCTION, classmethod)


def names(value: Any) -> Iterator[Tuple[str, str]]:
    """Yield names and values of attributes, the object's own first; some may occur twice."""
    if is_class(value):
        for kind in (*mro(value), *mro(type(value))):
            yield from _words(_class_dict(kind), True)
        return
    yield from _words(own(value), False)
    for kind in mro(type(value)):
        yield from _words(_class_dict(kind), True)


def items(held: Any) -> List[Tuple[Any, Any]]:
    """Return the first items of a dictionary without calling methods of subclasses."""
    view = held.items() if type(held) is type(type.__dict__) else dict.items(held)
    try:
        return list(islice(view, WALK))
    except RuntimeError:  # another thread changes it
        return []


def word(raw: Any, in_class: bool) -> str:
    """Return function, method, class, module, property or instance."""
    kind = type(raw)
    if issubclass(kind, type):
        return "class"
    if issubclass(kind, MODULE):
        return "module"
    if kind in _CALLED:
        return "method" if in_class else "function"
    if in_class and kind is not FUNCTION and _of_kinds(mro(kind), "__get__") is not MISSING:
        return "property" if _of_kinds(mro(kind), "__call__") is MISSING else "method"
    if _of_c(kind) and _of_kinds(mro(kind), "__call__") is not MISSING:
        return "function"
    return "instance"


def resolve(roots: Tuple[Dict[str, Any], ...], path: List[str]) -> Tuple[Any, str]:
    """Resolve a dotted path, its first name looked up in each of `roots`; MISSING if there is nothing."""
    value: Any = MISSING
    for root in roots:
        value = root.get(path[0], MISSING)
        if value is not MISSING:
            break
    kind = "" if value is MISSING else word(value, False)
    for name in path[1:]:
        if value is MISSING or type(value) is UnreadProperty:
            return MISSING, ""
        value, kind = attribute(value, name)
    return value, kind


def columns(value: Any) -> List[str]:
    """Return the column names of an exact pandas or polars frame."""
    for package in ("pandas", "polars"):
        library = sys.modules.get(package)
        if type(library) is MODULE and type(value) is library.__dict__.get("DataFrame", MISSING):
            return [name for name in islice(value.columns, _COLUMNS) if type(name) is str]
    return []


def text(value: Any) -> Optional[str]:
    """Return the value if it is exactly a str."""
    return value if type(value) is str else None


def class_dict(kind: type) -> Any:
    return _class_dict(kind)


def _opened(raw: Any) -> Any:
    # The function of a static or class method; other descriptors are returned unchanged.
    return raw.__func__ if type(raw) in (staticmethod, classmethod) else raw


def _of_kinds(kinds: Tuple[type, ...], name: str) -> Any:
    for kind in kinds:
        raw = _class_dict(kind).get(name, MISSING)
        if raw is not MISSING:
            return raw
    return MISSING


def _of_c(kind: type) -> bool:
    flags = _flags(kind)
    return not flags & _HEAP or (bool(flags & _IMMUTABLE) and sys.version_info >= (3, 10))


def _owner(descriptor: Any) -> type:
    owner = descriptor.__objclass__
    return owner if type(owner) is type else object


def _read(descriptor: Any, value: Any) -> Any:
    try:
        return type(descriptor).__get__(descriptor, value)
    except Exception:
        return MISSING


def _words(held: Any, in_class: bool) -> List[Tuple[str, str]]:
    return [(name, word(raw, in_class)) for name, raw in items(held) if type(name) is str]

"""What an object is and has, read past properties, `__getattr__`, `__dir__`, metaclasses: no code of the user's."""

from __future__ import annotations

import sys
from itertools import islice

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple

__builtins__ = SEALED


class UnreadProperty:
    """Stands for the value of a property, which only the user's own code could tell."""

    def __init__(self, descriptor: Any) -> None:
        self.descriptor = descriptor


WALK = 20_000  # names looked at in one dictionary
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
    """The dictionary of a module or an instance, or an empty one when it has none that can be read without its help."""
    for kind in mro(type(value)):
        found = _class_dict(kind).get("__dict__", MISSING)
        if found is not MISSING:
            if type(found) is _GETSET or type(found) is _MEMBER:
                held = _read(found, value)
                return held if issubclass(type(held), dict) else {}
            return {}  # a property of the user's
    return {}


def attribute(value: Any, name: str) -> Tuple[Any, str]:
    """What `value.name` is, and in one word; MISSING when there is none, Unread when it takes code to tell."""
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
    said = word(shared, not is_module(value))
    return (UnreadProperty(shared) if said == "property" else _opened(shared)), said


def is_given(holder: Any, name: str) -> bool:
    """Whether `holder.name` is a method that has got its first argument from there."""
    if is_class(holder):
        return type(_of_kinds(mro(holder), name)) is classmethod
    if is_module(holder) or dict.get(own(holder), name, MISSING) is not MISSING:
        return False
    return type(_of_kinds(mro(type(holder)), name)) in (FUNCTION, classmethod)


def names(value: Any) -> Iterator[Tuple[str, str]]:
    """Names of attributes and what they are, those of the object itself first; some may come twice."""
    if is_class(value):
        for kind in (*mro(value), *mro(type(value))):
            yield from _words(_class_dict(kind), True)
        return
    yield from _words(own(value), False)
    for kind in mro(type(value)):
        yield from _words(_class_dict(kind), True)


def items(held: Any) -> List[Tuple[Any, Any]]:
    """The first items of a dictionary, copied; of a subclass too, without a word of it."""
    view = held.items() if type(held) is type(type.__dict__) else dict.items(held)
    try:
        return list(islice(view, WALK))
    except RuntimeError:  # another thread is changing it
        return []


def word(raw: Any, in_class: bool) -> str:
    """function, method, class, module, property or instance."""
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
    """What a dotted path means, its first name looked for in each of `roots` in turn; MISSING when nothing."""
    value: Any = MISSING
    for root in roots:
        value = root.get(path[0], MISSING)
        if value is not MISSING:
            break
    said = "" if value is MISSING else word(value, False)
    for name in path[1:]:
        if value is MISSING or type(value) is UnreadProperty:
            return MISSING, ""
        value, said = attribute(value, name)
    return value, said


def columns(value: Any) -> List[str]:
    """Names of the columns of a frame that is exactly pandas's or polars's own."""
    for package in ("pandas", "polars"):
        library = sys.modules.get(package)
        if type(library) is MODULE and type(value) is library.__dict__.get("DataFrame", MISSING):
            return [name for name in islice(value.columns, _COLUMNS) if type(name) is str]
    return []


def text(value: Any) -> Optional[str]:
    """The value when it is exactly a str."""
    return value if type(value) is str else None


def class_dict(kind: type) -> Any:
    return _class_dict(kind)


def _opened(raw: Any) -> Any:
    # What a static method or class method holds. Any other descriptor stands for itself.
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

"""Pickler for snapshots: dill's, extended for functions and classes of the session.

Objects that dill writes with a copy of their globals refer to the session's globals instead; self-referential ones that
dill cannot write are created in two steps; objects that would be restored as something else (files, threads) are
rejected.
"""

from __future__ import annotations

import _thread
import io
import sys
from itertools import islice

from . import SEALED
from .bounds import type_name
from .static_inspect import class_dict, mro, own
from .unpickler import OURS, NotCopyable, is_a

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

__builtins__ = SEALED

_FUNCTION: Any = type(lambda: 0)
_BUILTIN: Any = type(len)
_MODULE: Any = type(sys)
_MEMBER: Any = type(type.__dict__["__basicsize__"])
_FILES = (io.FileIO, io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.BufferedRWPair)
_STREAMS = ("stdout", "stderr", "stdin", "__stdout__", "__stderr__", "__stdin__")
LOCKS = (type(_thread.allocate_lock()), _thread.RLock)
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: created at run time
_MADE_BY_ENUM = frozenset(
    (
        "__dict__",
        "__members__",
        "__module__",
        "__new__",
        "__new_member__",
        "__qualname__",
        "__weakref__",
        "_all_bits_",
        "_boundary_",
        "_flag_mask_",
        "_hashable_values_",
        "_inverted_",
        "_member_map_",
        "_member_names_",
        "_member_type_",
        "_new_member_",
        "_singles_mask_",
        "_sort_order_",
        "_unhashable_values_",
        "_unhashable_values_map_",
        "_use_args_",
        "_value2member_map_",
        "_value_repr_",
    )
)
_MADE_BY_CLASS = frozenset(["__dict__", "__weakref__", "_abc_impl", "__slots__", "__module__", "__qualname__"])
_PROTOCOL = 5
_COMMON = "common"  # marks memo keys that belong to no object
_SHARED_CHARS = 4096  # minimum length of texts shared between names


def create_pickler(dill: Any, main: Any, file: Any, beside: Callable[[Any], object]) -> Any:
    """Create a pickler for several objects with one memo. `beside` gets buffers kept out of the stream."""

    class Pickler(dill.Pickler):  # type: ignore[misc]
        dispatch: Any = _Writers(dill, main)

        def part(self, since: int) -> None:
            """Make later pickles write values without identity again: short texts, imported names.

            Otherwise one unreadable name would affect all others that mention the same module.
            """
            for key, (at, value) in list(islice(self.memo.items(), since, None)):
                if _is_common(dill, self, value):
                    del self.memo[key]
                    self.memo[_COMMON, at] = at, value  # the memo's length numbers the next entry

    Pickler.__module__ = dill.__name__  # dill recognises its picklers by this
    made = Pickler(file, _PROTOCOL, byref=False, recurse=False, buffer_callback=beside)
    made._main = main
    return made


def _is_common(dill: Any, pickler: Any, value: Any) -> bool:
    kind = type(value)
    if kind is str:
        return len(value) <= _SHARED_CHARS
    if kind is _FUNCTION or kind is _BUILTIN or issubclass(kind, type):
        return bool(dill._locate_function(value, pickler))
    return is_a(kind, "numpy", "dtype")


class _Table(dict):  # type: ignore[type-arg]
    """Writers by type, looked up on first use."""

    def __init__(self, find: Callable[[type], Any]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, kind: type) -> Any:
        self[kind] = writer = self._find(kind)
        return writer


class _Writers:
    """Chooses the function that writes a type: the harness's, dill's, or none for the pickler's default.

    The pickler calls `get` for every object, so it is the dictionary's own method.
    """

    def __init__(self, dill: Any, main: Any) -> None:
        self._dill = dill
        self._main = main
        table = _Table(self._by_descent)
        table.update(dict.fromkeys(LOCKS, self._lock))
        table.update({dict: self._dict, _FUNCTION: self._function, dill.CellType: self._cell, _MODULE: self._module})
        capsule = dill.__dict__.get("PyCapsuleType")
        if capsule is not None:
            table[capsule] = _refuse  # dill copies the address, which is invalid in another process
        self.get = table.__getitem__

    def _by_descent(self, kind: type) -> Any:
        kinds = mro(kind)
        if type in kinds:
            return self._enum if is_a(kind, "enum", "EnumMeta") else self._class
        if any(each in _FILES for each in kinds):
            return self._file
        if is_a(kind, "threading", "Thread") or is_a(kind, "threading", "local"):
            return _refuse
        if is_a(kind, "typing", "TypeVar"):
            return self._typevar
        if is_a(kind, "dataclasses", "_FIELD_BASE"):
            return self._field_kind
        numpy = sys.modules.get("numpy")
        if type(numpy) is _MODULE and kind is numpy.__dict__.get("ndarray"):
            return _array
        return self._dill.Pickler.dispatch.get(kind)

    # --- objects written by name ---

    def _module(self, pickler: Any, module: Any) -> None:
        if module is self._main:
            pickler.write(b"c%s\nmain\n" % OURS.encode())
            pickler.memoize(module)
            return
        name = module_name(module)
        if name is None:
            raise NotCopyable("a module that cannot be imported")
        pickler.save_reduce(self._dill._import_module, (name,), obj=module)

    def _dict(self, pickler: Any, held: Dict[Any, Any]) -> None:
        name = held.get("__name__") if "__name__" in held else None
        if held is self._main.__dict__:
            pickler.write(b"c__builtin__\n__main__\n")
        elif type(name) is str and type(sys.modules.get(name)) is _MODULE and sys.modules[name].__dict__ is held:
            pickler.write(("c%s\n__dict__\n" % name).encode())
        else:
            self._dill.StockPickler.save_dict(pickler, held)

    def _file(self, pickler: Any, file: Any) -> None:
        for name in _STREAMS:
            if sys.__dict__.get(name) is file:
                pickler.write(("csys\n%s\n" % name).encode())  # the new session's own
                pickler.memoize(file)
                return
        _refuse(pickler, file)

    def _field_kind(self, pickler: Any, kind: Any) -> None:
        pickler.write(("cdataclasses\n%s\n" % kind.name).encode())  # compared by identity
        pickler.memoize(kind)

    def _lock(self, pickler: Any, lock: Any) -> None:
        if repr(lock).startswith("<locked"):
            raise NotCopyable("a locked lock")
        pickler.save_reduce(type(lock) if type(lock) is _thread.RLock else _thread.allocate_lock, (), obj=lock)

    def _typevar(self, pickler: Any, var: Any) -> None:
        name = var.__name__
        if var.__module__ != "__main__" and own(sys.modules.get(var.__module__)).get(name) is var:
            pickler.save_global(var, name=name)
            return
        more = {"covariant": var.__covariant__, "contravariant": var.__contravariant__}
        if var.__bound__ is not None:
            more["bound"] = var.__bound__
        self._make(pickler, "typevar", (var.__name__, var.__constraints__, more, var.__module__), var)

    # --- objects created in two steps ---

    def _make(self, pickler: Any, maker: str, arguments: Any, made: Any) -> bool:
        """Write the call that creates `made`. Return False if its own arguments already wrote it."""
        pickler.write(("c%s\n%s\n" % (OURS, maker)).encode())
        pickler.save(arguments)
        known = pickler.memo.get(id(made))
        if known is not None:
            pickler.write(b"00" + pickler.get(known[0]))
            return False
        pickler.write(b"R")
        pickler.memoize(made)
        return True

    def _fill(self, pickler: Any, filler: str, arguments: Any) -> None:
        pickler.write(("c%s\n%s\n" % (OURS, filler)).encode())
        pickler.save(arguments)
        pickler.write(b"R0")

    def _cell(self, pickler: Any, cell: Any) -> None:
        if self._make(pickler, "cell", (), cell):
            try:
                content = cell.cell_contents
            except ValueError:  # empty
                return
            self._fill(pickler, "fill_cell", (cell, content))

    def _function(self, pickler: Any, function: Any) -> None:
        if function.__globals__ is not self._main.__dict__ and self._dill._locate_function(function, pickler):
            pickler.save_global(function, name=function.__qualname__)
            return
        what = (function.__code__, function.__globals__, function.__name__, function.__closure__)
        if self._make(pickler, "function", what, function):
            names = ("__defaults__", "__kwdefaults__", "__doc__", "__annotations__", "__qualname__", "__module__")
            state = {name: getattr(function, name) for name in names}
            self._fill(pickler, "fill_function", (function, state, function.__dict__))

    def _class(self, pickler: Any, kind: Any) -> None:
        if self._is_elsewhere(pickler, kind):
            return
        held = dict(class_dict(kind))
        slots = held.get("__slots__", ())
        bases = kind.__bases__ if "_fields" in held else held.get("__orig_bases__", kind.__bases__)
        body = {name: held[name] for name in ("__module__", "__qualname__", "__slots__") if name in held}
        if self._make(pickler, "class", (type(kind), kind.__name__, bases, body), kind):
            attributes = {
                name: value
                for name, value in held.items()
                if name not in _MADE_BY_CLASS and not (type(value) is _MEMBER and (name in slots or slots == name))
            }
            self._fill(pickler, "fill_class", (kind, attributes, _abc_subclasses(kind)))

    def _enum(self, pickler: Any, kind: Any) -> None:
        if self._is_elsewhere(pickler, kind):
            return
        held = dict(class_dict(kind))
        members = held.get("_member_map_", {})
        body = {name: held[name] for name in ("__module__", "__qualname__") if name in held}
        more = {"boundary": held["_boundary_"]} if held.get("_boundary_") is not None else {}
        values = {name: member._value_ for name, member in members.items()}
        if self._make(pickler, "enum", (type(kind), kind.__name__, kind.__bases__, body, values, more), kind):
            attributes = {n: v for n, v in held.items() if n not in _MADE_BY_ENUM and n not in members}
            states = {name: _member_state(member) for name, member in members.items()}
            self._fill(pickler, "fill_enum", (kind, attributes, states))

    def _is_elsewhere(self, pickler: Any, kind: Any) -> bool:
        """Write an importable class, or one implemented in C, by name."""
        dill = self._dill
        if kind in dill._typemap or not type.__dict__["__flags__"].__get__(kind) & _HEAP or kind is dill.EnumMeta:
            dill.save_type(pickler, kind)
        elif dill._locate_function(kind, pickler):
            dill.StockPickler.save_global(pickler, kind, name=kind.__qualname__)
        else:
            return False
        return True


def module_name(module: Any) -> Optional[str]:
    """Return the name under which a module can be imported."""
    name = own(module).get("__name__")
    return name if type(name) is str and sys.modules.get(name) is module else None


def _array(pickler: Any, array: Any) -> None:
    # dill copies the bytes into the stream; this way they are not copied before they are written.
    pickler.save_reduce(*array.__reduce_ex__(_PROTOCOL), obj=array)


def _refuse(_: Any, value: Any) -> None:
    kinds = mro(type(value))
    what = "an open file" if any(each in _FILES for each in kinds) else "a %s" % type_name(type(value))
    raise NotCopyable("%s belongs to its process" % what)


def _abc_subclasses(kind: Any) -> List[Any]:
    """Return the classes registered with an abstract base class."""
    if not is_a(type(kind), "abc", "ABCMeta") or "_abc_impl" not in class_dict(kind):
        return []
    from _abc import _get_dump  # type: ignore[import-not-found]

    found = [each() for each in _get_dump(kind)[0]]
    return [each for each in found if each is not None]


def _member_state(member: Any) -> Dict[str, Any]:
    held = own(member)
    return {n: v for n, v in held.items() if n not in ("_value_", "_name_", "__objclass__", "_sort_order_")}

"""Unpickler for snapshots, with the functions that pickles call by name to create functions, cells and classes.

Objects that can refer to themselves are created empty and filled afterwards, so any cycle can be written.
"""

from __future__ import annotations

import builtins
import sys

from . import SEALED
from .static_inspect import mro

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

__builtins__ = SEALED

OURS = "replharness"  # module name of these functions in pickles
_FUNCTION: Any = type(lambda: 0)
_set_on_class = type.__setattr__


class NotCopyable(Exception):
    """Error for an object that cannot be copied to another session."""


class _LostReference(Exception):
    """A referenced object belongs to a name that could not be restored."""


_LOST: Any = _LostReference()
_COMPILED = frozenset(
    ((OURS, "function"), ("dill._dill", "_create_code"), ("dill._dill", "_create_function"), ("types", "CodeType"))
)


def create_unpicklers(main: Any, file: Any, buffers: Iterator[Any], foreign: Optional[str] = None) -> Tuple[Any, Any]:
    """Create two unpicklers for several pickles with one memo: a fast one, and one that survives failures.

    `foreign` is the Python that wrote them, if it is of another version: its compiled code would crash this one.
    """
    import pickle

    made = _makers(main)

    def find(unpickler: Any, module: str, name: str) -> Any:
        if foreign is not None and (module, name) in _COMPILED:
            raise NotCopyable("code compiled by %s" % foreign)
        if module == OURS:
            return made[name]
        if module == "__builtin__":
            return main.__dict__ if name == "__main__" else getattr(builtins, name, type(None))
        return super(type(unpickler), unpickler).find_class(module, name)

    class Fast(pickle.Unpickler):
        find_class = find

    python_unpickler: Any = pickle.__dict__["_Unpickler"]

    class Patient(python_unpickler):  # type: ignore[misc]
        find_class = find

        def skip(self, before: int, count: int) -> None:
            """Skip half-created objects after a failure, counting them as the writer did."""
            self.memo.update((at, _LOST) for at in range(before, count))
            self.dispatch: Any = _wary(python_unpickler.dispatch)

    return Fast(file, buffers=buffers), Patient(file, buffers=buffers)


def _wary(dispatch: Dict[int, Callable[[Any], None]]) -> Dict[int, Callable[[Any], None]]:
    """Return the dispatch table with a check that raises on references to lost objects."""

    def checked(load: Callable[[Any], None]) -> Callable[[Any], None]:
        def load_and_check(unpickler: Any) -> None:
            load(unpickler)
            if unpickler.stack[-1] is _LOST:
                raise _LostReference("it shares something with a name that could not be restored")

        return load_and_check

    return {**dispatch, **{code: checked(dispatch[code]) for code in b"gjh"}}  # GET, LONG_BINGET, BINGET


def _makers(main: Any) -> Dict[str, Any]:
    from types import CellType

    def function(code: Any, namespace: Any, name: str, closure: Any) -> Any:
        namespace.setdefault("__builtins__", builtins)
        return _FUNCTION(code, namespace, name, None, closure)

    return {
        "main": main,
        "function": function,
        "cell": CellType,
        "fill_cell": _fill_cell,
        "fill_function": _fill_function,
        "class": _class,
        "fill_class": _fill_class,
        "enum": _enum,
        "fill_enum": _fill_enum,
        "typevar": _typevar,
    }


def _fill_cell(cell: Any, content: Any) -> None:
    cell.cell_contents = content


def _fill_function(function: Any, state: Dict[str, Any], held: Dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(function, name, value)
    function.__dict__.update(held)


def _class(kind: Any, name: str, bases: Tuple[Any, ...], body: Dict[str, Any]) -> Any:
    from types import new_class

    return new_class(name, bases, {"metaclass": kind}, lambda namespace: namespace.update(body))


def _fill_class(made: Any, attributes: Dict[str, Any], registered: List[Any]) -> None:
    for name, value in attributes.items():
        _set_on_class(made, name, value)
    for each in registered:
        made.register(each)


def _enum(
    kind: Any, name: str, bases: Tuple[Any, ...], body: Dict[str, Any], members: Dict[str, Any], more: Dict[str, Any]
) -> Any:
    namespace = kind.__prepare__(name, bases, **more)
    for pairs in (body, members):
        for key, value in pairs.items():
            namespace[key] = value
    return kind.__new__(kind, name, bases, namespace, **more)


def _fill_enum(made: Any, attributes: Dict[str, Any], members: Dict[str, Dict[str, Any]]) -> None:
    for name, value in attributes.items():
        _set_on_class(made, name, value)
    for name, held in members.items():
        made._member_map_[name].__dict__.update(held)


def _typevar(name: str, constraints: Tuple[Any, ...], more: Dict[str, Any], module: str) -> Any:
    from typing import TypeVar

    made: Any = TypeVar(name, *constraints, **more)  # type: ignore[misc]
    made.__module__ = module
    return made


def is_a(kind: type, library: str, name: str) -> bool:
    """Return whether `kind` derives from a class of an imported module; False if it is not imported."""
    module = sys.modules.get(library)
    wanted = module.__dict__.get(name) if type(module) is type(sys) else None
    return wanted is not None and any(each is wanted for each in mro(kind))

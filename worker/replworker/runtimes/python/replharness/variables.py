"""List of the user's names with their values, created without running user code."""

from __future__ import annotations

import sys

from . import SEALED
from .bounds import NAME_CHARS, plain, type_name
from .render import bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

__builtins__ = SEALED

PREVIEW_CHARS = 80
_MAX_LISTED = 1000
_SMALL = 20  # maximum items of a previewed container
_INT_BITS = 256  # maximum bits of a previewed int
_MODULE = type(sys)
_SIZED = (str, bytes, bytearray, list, tuple, dict, set, frozenset)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_SCALARS = (int, float, complex, bool, type(None), str, bytes)
_SHAPED = (("numpy", "ndarray"), ("pandas", "DataFrame"), ("pandas", "Series"), ("polars", "DataFrame"))
_SHAPED_TOO = (("polars", "Series"), ("torch", "Tensor"))


def names(namespace: Dict[str, Any]) -> List[str]:
    """Return the user's names without a leading underscore, modules included; unsorted."""
    return [name for name in list(namespace) if type(name) is str and not name.startswith("_")]


def listing(namespace: Dict[str, Any], limit: int) -> Tuple[List[Dict[str, Any]], int]:
    """Return at most `limit` (0..1000) rows sorted by name, and the total."""
    kinds = _shaped_kinds()
    found = []
    for name, value in list(namespace.items()):
        if type(name) is str and not name.startswith("_") and not issubclass(type(value), _MODULE):
            found.append((name, value))
    found.sort(key=_first)
    return [_row(name, value, kinds) for name, value in found[: min(max(limit, 0), _MAX_LISTED)]], len(found)


def _first(pair: Tuple[str, Any]) -> str:
    return pair[0]


def _row(name: str, value: Any, kinds: Tuple[type, ...]) -> Dict[str, Any]:
    kind = type(value)
    row: Dict[str, Any] = {"name": plain(name[:NAME_CHARS]), "type": type_name(kind)}
    if kind in _SIZED:
        row["size"] = len(value)
    elif any(kind is known for known in kinds):
        shape = value.shape
        if issubclass(type(shape), tuple) and len(shape) <= 32:
            row["shape"] = [side for side in shape if type(side) is int]
    if _previewed(value) or (kind in _CONTAINERS and len(value) <= _SMALL and all(map(_previewed, _parts(value)))):
        text = bounded(value, PREVIEW_CHARS)
        row["preview"] = plain(text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…")
    return row


def _parts(value: Any) -> List[Any]:
    return [*value, *value.values()] if type(value) is dict else list(value)


def _previewed(value: Any) -> bool:
    return type(value) in _SCALARS and not (type(value) is int and value.bit_length() > _INT_BITS)


def _shaped_kinds() -> Tuple[type, ...]:
    """Return the exact array types of imported libraries, without module `__getattr__`."""
    kinds = []
    for package, name in (*_SHAPED, *_SHAPED_TOO):
        module = sys.modules.get(package)
        if type(module) is _MODULE:
            kind = module.__dict__.get(name)
            if isinstance(kind, type):
                kinds.append(kind)
    return tuple(kinds)

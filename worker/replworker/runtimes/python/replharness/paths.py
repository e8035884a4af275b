"""Names on disk: files beside a path and importable modules. Nothing is opened or imported."""

from __future__ import annotations

import os
import sys
import time

from . import SEALED
from .static_inspect import own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Tuple

__builtins__ = SEALED

_ENTRIES = 5000  # per directory
_SPAN_S = 0.05  # for scanning directories; the rest is left out
_ENDINGS = (".py", ".so", ".pyc")


def files(directory: str) -> List[Tuple[str, str]]:
    """Return the entries of a directory; directories end with a slash."""
    until = time.monotonic() + _SPAN_S
    found = []
    for name, is_directory in _entries(os.path.expanduser(directory) or ".", until):
        if name.isprintable() and not set(name) & set("'\"\\"):
            found.append((name + "/" if is_directory else name, "path"))
    return found


def modules(package: List[str], loaded: Any) -> List[Tuple[str, str]]:
    """Return modules in a package, or top-level ones for "". `loaded` is the package if it is imported."""
    until = time.monotonic() + _SPAN_S
    found = []
    directories = [path or "." for path in list(sys.path) if type(path) is str]
    if package:
        within = own(loaded).get("__path__") if loaded is not None else None
        if type(within) is list:
            directories = [path for path in within if type(path) is str]
        else:
            directories = [os.path.join(path, *package) for path in directories]
    else:
        found = [name for name in (*sys.builtin_module_names, *list(sys.modules)) if type(name) is str]
    for directory in directories:
        for name, is_directory in _entries(directory, until):
            stem, _, ending = name.partition(".")
            if (is_directory and not ending) or name.endswith(_ENDINGS):
                found.append(stem)
    return [(name, "module") for name in found if name.isidentifier() and name != "__pycache__" and name != "__init__"]


def _entries(directory: str, until: float) -> List[Tuple[str, bool]]:
    found: List[Tuple[str, bool]] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if len(found) >= _ENTRIES or time.monotonic() > until:
                    break
                found.append((entry.name, entry.is_dir()))
    except (OSError, ValueError):
        pass  # not a readable directory
    return found

"""Evals that load a file: `__file__`, and loading it again."""

from __future__ import annotations

import os
import sys

from . import SEALED
from .static_inspect import MISSING, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

__builtins__ = SEALED

FILES = 100  # files remembered; least recently loaded dropped first
_MODULE = type(sys)


class FileLoads:
    """Remembers the names bound by each file's last load, with their values."""

    def __init__(self) -> None:
        self._bindings: Dict[str, Dict[str, int]] = {}

    def load(self, file: str, again: bool, namespace: Dict[str, Any], run: Callable[[], Any]) -> Any:
        """Return the result of `run` with `__file__` set. With `again`, first delete names of the last load.

        If the file is an imported module, `again` reloads and returns that module instead.
        """
        if again:
            module = _module_of(file)
            if module is not None:
                import importlib

                return importlib.reload(module)
            self._forget(file, namespace)
        before = {name: id(value) for name, value in list(namespace.items())}
        shadowed = namespace.get("__file__", MISSING)
        namespace["__file__"] = file
        try:
            return run()
        finally:
            if shadowed is MISSING:
                namespace.pop("__file__", None)
            else:
                namespace["__file__"] = shadowed
            self._note(file, before, namespace)

    def _forget(self, file: str, namespace: Dict[str, Any]) -> None:
        """Delete names of the last load unless they were rebound since."""
        for name, was in self._bindings.get(file, {}).items():
            if id(namespace.get(name, MISSING)) == was:
                namespace.pop(name)

    def _note(self, file: str, before: Dict[str, int], namespace: Dict[str, Any]) -> None:
        self._bindings.pop(file, None)
        self._bindings[file] = {
            name: id(value)
            for name, value in list(namespace.items())
            if type(name) is str and before.get(name) != id(value) and not name.startswith("__")
        }
        while len(self._bindings) > FILES:
            del self._bindings[next(iter(self._bindings))]


def _module_of(file: str) -> Any:
    """Return the imported module of this file, or None."""
    real, tail = os.path.realpath(file), os.path.basename(file)
    for name, module in list(sys.modules.items()):
        if type(module) is not _MODULE or name == "__main__":
            continue
        held = own(module)
        path = held.get("__file__")
        if type(path) is not str or os.path.basename(path) != tail or held.get("__spec__") is None:
            continue
        if held.get("__name__") == name and (path == file or os.path.realpath(path) == real):
            return module
    return None

"""dill: the interpreter's own, or another copy that is in `sys.modules` only while in use."""

from __future__ import annotations

import _frozen_importlib
import _frozen_importlib_external
import os
import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

__builtins__ = SEALED

_MODULE = type(sys)


class DillUnavailable(Exception):
    """dill is available neither in the interpreter nor in the given directory."""


class DillLoader:
    """Finds dill once."""

    def __init__(self) -> None:
        self._borrowed: Optional[DillContext] = None

    def find(self, directory: Optional[str]) -> DillContext:
        """Return a context in which dill can be used.

        Raises:
            DillUnavailable: there is none; or whatever its import raises
        """
        known = sys.modules.get("dill._dill")
        if type(known) is _MODULE and "Pickler" in known.__dict__:
            return DillContext({})
        if self._borrowed is not None:
            return self._borrowed
        spec = _frozen_importlib_external.PathFinder.find_spec("dill")
        # A user's script called dill.py is something else, and must not run to find out.
        if spec is not None and _has_dill(spec.submodule_search_locations):
            SEALED["__import__"]("dill")
            return DillContext({})
        if directory is None or not _has_dill([os.path.join(directory, "dill")]):
            raise DillUnavailable("dill is not installed in %s" % sys.executable)
        self._borrowed = DillContext(_load(os.path.join(directory, "dill")))
        return self._borrowed


class DillContext:
    """Context with dill's modules in `sys.modules`; removes them unless they are the interpreter's."""

    def __init__(self, modules: Dict[str, Any]) -> None:
        self._modules = modules

    def __enter__(self) -> Any:
        sys.modules.update(self._modules)
        return sys.modules["dill._dill"]

    def __exit__(self, *_: object) -> None:
        self._modules.update(_take(bool(self._modules)))


def _has_dill(directories: Any) -> bool:
    return any(os.path.isfile(os.path.join(directory, "_dill.py")) for directory in directories or ())


def _load(directory: str) -> Dict[str, Any]:
    make: Any = _frozen_importlib_external.spec_from_file_location
    stale = _take(True)
    spec = make("dill", os.path.join(directory, "__init__.py"), submodule_search_locations=[directory])
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["dill"] = module
    try:
        spec.loader.exec_module(module)
        return _take(True)
    finally:
        _take(True)
        sys.modules.update(stale)


def _take(really: bool) -> Dict[str, Any]:
    """Remove dill's modules from sys.modules."""
    names = [name for name in list(sys.modules) if type(name) is str and name.partition(".")[0] == "dill"]
    return {name: sys.modules.pop(name) for name in names} if really else {}

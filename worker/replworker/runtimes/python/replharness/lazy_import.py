"""Lazy import of rarely used parts, independent of the user's `sys.path` and `sys.modules`."""

from __future__ import annotations

import os
import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__builtins__ = SEALED

_PACKAGE = __name__.rpartition(".")[0]
_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_PRELOADED = (
    "__future__",
    "_frozen_importlib",
    "_frozen_importlib_external",
    "_signal",
    "_thread",
    "builtins",
    "io",
    "itertools",
    "marshal",
    "os",
    "stat",
    "sys",
    "time",
)
_LOADER: Any = type(globals()["__loader__"])


class LazyImporter:
    """Loads modules of this package from their files; their imports see only modules loaded before the user's."""

    def __init__(self) -> None:
        self._modules = {name: sys.modules[name] for name in _PRELOADED if name in sys.modules}
        self._modules.update((name, module) for name, module in sys.modules.items() if name.startswith(_PACKAGE))
        self._module = type(sys)
        self._import = SEALED["__import__"]
        self._builtins = dict(SEALED, __import__=self._import_hook)

    def load(self, name: str) -> Any:
        """Return a module of this package. Raises whatever reading or running its file raises."""
        full = _PACKAGE + "." + name
        module = self._modules.get(full)
        if module is None:
            path = os.path.join(_DIRECTORY, name + ".py")
            module = self._module(full)
            module.__dict__.update(__builtins__=self._builtins, __package__=_PACKAGE, __file__=path)
            exec(_LOADER(full, path).get_code(full), module.__dict__)
            self._modules[full] = module  # set last, so an interrupted load is repeated
        return module

    def _import_hook(
        self, name: str, namespace: Any = None, local: Any = None, wanted: Any = None, level: int = 0
    ) -> Any:
        """Act as `__import__` for lazily loaded modules."""
        if level:
            return self.load(name) if name else self._modules[_PACKAGE]
        known = self._modules.get(name)
        return self._import(name, namespace, local, wanted, 0) if known is None else known

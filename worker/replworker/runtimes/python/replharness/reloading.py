"""Reloading before an eval: a file's text, or the user's autoreloader."""

from __future__ import annotations

import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from .interrupts import Interrupts
    from .lazy_import import LazyImporter
    from .sources import Sources

__builtins__ = SEALED

_IPYTHON, _JURIGGED = "IPython.extensions.autoreload", "jurigged.live"


class Reloading:
    """Loads its parts on first use. Evals that need none of them pay two lookups."""

    def __init__(self, late: LazyImporter, interrupts: Interrupts, sources: Sources) -> None:
        self._late = late
        self._interrupts = interrupts
        self._sources = sources
        self._named = False
        self._file: Optional[str] = None
        self._again = False
        self._files: Any = None
        self._autoreload: Any = None

    def begin(self, message: Dict[str, Any]) -> None:
        """Read the frame's settings."""
        file = message.get("file")
        self._file = file if type(file) is str else None
        self._named = message.get("named") is True
        self._again = message.get("reload") is True

    def run(self, namespace: Dict[str, Any], name: str, run: Callable[[str], Any]) -> Any:
        """Return the result of `run`, called with the name to show in tracebacks."""
        if self._named:
            modules = sys.__dict__.get("modules")  # user code may have replaced it
            if type(modules) is dict and (_IPYTHON in modules or _JURIGGED in modules):
                self._refresh(namespace)
        file = self._file
        if file is None:
            return run(name)
        if self._files is None:
            self._files = self._interrupts.uninterrupted(lambda: self._late.load("files")).FileLoads()
        if self._again:
            self._sources.forget(file)  # a reloaded module has its text on disk
        return self._files.load(file, self._again, namespace, lambda: run(file))

    def _refresh(self, namespace: Dict[str, Any]) -> None:
        if self._autoreload is None:
            self._autoreload = self._interrupts.uninterrupted(lambda: self._late.load("autoreload")).Autoreload()
        self._autoreload.refresh(namespace)

"""The session's installed packages on `sys.path`, and the packages of the environment."""

from __future__ import annotations

import importlib
import os
import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

__builtins__ = SEALED

_LIBRARIES = ("site-packages", "dist-packages")
_MOST = 5000  # distributions listed
_REQUIREMENTS = ("pylock.toml", "requirements.txt", "pyproject.toml")  # in this order
_MOST_TEXT = 1024 * 1024


class ImportLayer:
    """The one entry of `sys.path` with packages that the session has installed."""

    def __init__(self) -> None:
        self._path: Optional[str] = None

    def use(self, path: str) -> None:
        """Import from this directory instead of the last: after the standard library, before the environment's."""
        if self._path in sys.path:
            sys.path[sys.path.index(self._path)] = path
        else:
            libraries = [at for at, each in enumerate(sys.path) if type(each) is str and each.endswith(_LIBRARIES)]
            sys.path.insert(libraries[0] if libraries else len(sys.path), path)
        self._path = path
        importlib.invalidate_caches()

    @staticmethod
    def read_requirements(file: str) -> Dict[str, str]:
        """Return name and text of a file, or of the first lock or project file here; nothing if there is none."""
        if not file:
            names = [name for name in _REQUIREMENTS if os.path.exists(name)]
            if not names:
                return {}
            file = names[0]
        with open(file, encoding="utf-8") as source:
            text = source.read(_MOST_TEXT + 1)
        if len(text) > _MOST_TEXT:
            raise ValueError("%s is longer than %d characters" % (file, _MOST_TEXT))
        return {"file": file, "text": text}

    @staticmethod
    def imported(modules: List[str]) -> List[str]:
        """Return the modules among these that are imported."""
        return [name for name in modules if name in sys.modules]

    def distributions(self) -> List[Tuple[str, str]]:
        """Return names and versions of the environment's packages, without those that the session has installed."""
        found: List[Tuple[str, str]] = []
        for directory in list(sys.path):
            if type(directory) is not str or directory == self._path:
                continue
            try:
                names = os.listdir(directory or ".")
            except OSError:
                continue
            for entry in names:
                stem, _, ending = entry.rpartition(".")
                parts = stem.split("-")
                if ending in ("dist-info", "egg-info") and len(parts) > 1 and len(found) < _MOST:
                    found.append((parts[0], parts[1]))
        return found

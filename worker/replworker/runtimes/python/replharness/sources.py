"""Source text of past evals for tracebacks and inspect.getsource."""

from __future__ import annotations

import sys

from . import SEALED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    Entry = Tuple[int, None, List[str], str]

__builtins__ = SEALED

SOURCES_CHARS = 8 << 20


class Sources:
    """Fills linecache.cache, oldest dropped beyond 8 Mi characters. As an import hook it waits for linecache.

    linecache imports tokenize and re, which sessions without errors do not need.
    """

    def __init__(self) -> None:
        self._entries: Dict[str, Entry] = {}
        self._chars = 0
        self._cache: Optional[Dict[str, Any]] = None
        module = sys.modules.get("linecache")
        if module is None:
            sys.meta_path.insert(0, self)
        else:
            self._fill(module)

    def add(self, name: str, code: str) -> None:
        old = self._entries.pop(name, None)
        if old is not None:
            self._chars -= old[0]
        entry: Entry = (len(code), None, [line + "\n" for line in code.split("\n")], name)
        self._entries[name] = entry
        self._chars += len(code)
        if self._cache is not None:
            self._cache[name] = entry  # no mtime: checkcache ignores it
        while self._chars > SOURCES_CHARS:
            first = next(iter(self._entries))
            self._chars -= self._entries.pop(first)[0]
            if self._cache is not None:
                self._cache.pop(first, None)

    def forget(self, name: str) -> None:
        """Drop the text of a name that no longer matches the running code."""
        old = self._entries.pop(name, None)
        if old is not None:
            self._chars -= old[0]
            if self._cache is not None:
                self._cache.pop(name, None)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find nothing, but fill linecache once it has been imported."""
        if name != "linecache" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                self._fill_after(spec.loader)
                return spec
        return None

    def _fill_after(self, loader: Any) -> None:
        run = loader.exec_module

        def run_and_fill(module: Any) -> None:
            run(module)
            self._fill(module)

        try:
            loader.exec_module = run_and_fill
        except AttributeError:  # frozen or zipped: this session's sources stay unknown
            pass

    def _fill(self, module: Any) -> None:
        cache = getattr(module, "cache", None)
        if type(cache) is dict:
            self._cache = cache
            cache.update(self._entries)

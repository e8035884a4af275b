"""Autoreload: lets the user's reloader run before an eval, if it is the genuine one."""

from __future__ import annotations

import _frozen_importlib
import _frozen_importlib_external
import os
import sys

from . import SEALED
from .static_inspect import FUNCTION, MISSING, attribute, class_dict, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

__builtins__ = SEALED

IPYTHON = "IPython.extensions.autoreload"
JURIGGED = "jurigged.live"
_FILES = 2000  # watched files checked before an eval
_RECORD_BYTES = 1 << 20
_MODULE = type(sys)
_SPEC: Any = _frozen_importlib.ModuleSpec
_LOADERS: Tuple[Any, ...] = (
    _frozen_importlib_external.SourceFileLoader,
    _frozen_importlib_external.SourcelessFileLoader,
)


class Autoreload:
    """Runs the reloaders that the user has enabled in the namespace."""

    def __init__(self) -> None:
        self._genuine: Dict[int, Tuple[Any, bool]] = {}
        self._seen: Dict[str, float] = {}

    def refresh(self, namespace: Dict[str, Any]) -> None:
        """Run the reloaders. Raises only KeyboardInterrupt; a failure is one line on sys.stderr."""
        for name, distribution, work in ((IPYTHON, "ipython", self._ipython), (JURIGGED, "jurigged", self._jurigged)):
            module = sys.modules.get(name)
            if module is None or not self._is_genuine(module, name, distribution):
                continue
            try:
                work(own(module), list(namespace.values()))
            except KeyboardInterrupt:
                raise
            except BaseException as exc:
                _warn(name, exc)

    def _ipython(self, module: Dict[str, Any], values: List[Any]) -> None:
        kind, check = _method(module, "ModuleReloader", "check")
        for value in values:
            if type(value) is kind and attribute(value, "enabled")[0] is True:
                _drop_old_bytecode(list(sys.modules.values()))
                check(value)

    def _jurigged(self, module: Dict[str, Any], values: List[Any]) -> None:
        kind, refresh = _method(module, "Watcher", "refresh")
        for watcher in values:
            if type(watcher) is not kind or not watcher.observer.is_alive():
                continue
            registry = watcher.registry
            for file in [*registry.precache, *registry.cache][:_FILES]:
                when = _changed_at(file)
                read = registry.precache[file][2] if file in registry.precache else when
                if when != self._seen.get(file, read):
                    refresh(watcher, file)  # the same text again is not a change
                self._seen[file] = when
            while len(self._seen) > 2 * _FILES:
                del self._seen[next(iter(self._seen))]

    def _is_genuine(self, module: Any, name: str, distribution: str) -> bool:
        known = self._genuine.get(id(module))
        if known is None or known[0] is not module:
            try:
                known = (module, _is_from_distribution(module, name, distribution))
            except Exception:
                known = (module, False)
            self._genuine = {**(self._genuine if len(self._genuine) < 10 else {}), id(module): known}
        return known[1]


def _is_from_distribution(module: Any, name: str, distribution: str) -> bool:
    """Return whether the distribution installed the file the module was loaded from."""
    spec: Any = own(module).get("__spec__")
    if type(module) is not _MODULE or type(spec) is not _SPEC or type(spec.loader) not in _LOADERS or spec.name != name:
        return False
    inside = name.replace(".", "/") + ".py"
    origin = spec.origin
    if type(origin) is not str or spec.loader.path != origin or not origin.endswith("/" + inside):
        return False
    root = origin[: -len(inside) - 1]
    for entry in os.listdir(root):
        project = entry.partition("-")[0]
        if entry.endswith(".dist-info") and project.lower() == distribution:
            with open(os.path.join(root, entry, "RECORD"), "rb") as file:
                return any(line.startswith(inside.encode() + b",") for line in file.read(_RECORD_BYTES).split(b"\n"))
    return False


def _method(module: Dict[str, Any], kind_name: str, name: str) -> Tuple[Any, Callable[..., Any]]:
    kind = module.get(kind_name)
    method = class_dict(kind).get(name, MISSING) if type(kind) is type else MISSING
    if type(method) is not FUNCTION or method.__code__.co_filename != module["__spec__"].origin:
        raise LookupError("%s.%s is not its own" % (kind_name, name))
    return kind, method


def _drop_old_bytecode(modules: List[Any]) -> None:
    """Delete bytecode that is older than its source but has its second and size, which Python takes for current."""
    checked = 0
    for module in modules:
        spec: Any = own(module).get("__spec__") if type(module) is _MODULE else None
        if type(spec) is not _SPEC or type(spec.loader) is not _LOADERS[0] or type(spec.cached) is not str:
            continue
        checked += 1
        if checked > _FILES:
            return
        try:
            source, bytecode = os.stat(spec.origin), os.stat(spec.cached)
            if 0 <= source.st_mtime_ns - bytecode.st_mtime_ns < 2_000_000_000:
                os.unlink(spec.cached)
        except (OSError, TypeError, ValueError):  # there is none, or it is somebody else's
            pass


def _changed_at(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0


def _warn(name: str, exc: BaseException) -> None:
    try:
        line = ("%s: %s" % (type(exc).__name__, exc)).replace("\n", " ")[:300]
        sys.stderr.write("%s: %s\n" % (name, line))
    except Exception:
        pass  # the user has replaced sys.stderr

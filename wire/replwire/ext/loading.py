"""Extension loading and registration with pluggy.

Only extensions named in `[[extensions]]` are loaded. Importing an extension registers nothing; its function
`replctl_register` does, and the composition root of a process calls it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from replwire.ext.contracts import Contribution
from replwire.ext.registry import ExtensionRegistry, InvalidContribution, Register
from replwire.extensions import Extension

GROUP = "replctl"  # entry point group and pluggy project name
hookimpl = pluggy.HookimplMarker(GROUP)
_hookspec = pluggy.HookspecMarker(GROUP)


class ExtensionLoadError(ValueError):
    """A configured extension is missing, unsafe to load, or fails to register."""


class _Spec:
    """Hook specification of an extension module."""

    @_hookspec
    def replctl_register(self, register: Register, settings: Mapping[str, Any]) -> None:
        """Call `register(contribution)` for each contribution. `settings` is the extension's part of the config."""


def load(extensions: Iterable[Extension], registry: ExtensionRegistry) -> list[str]:
    """Load extensions in order, let each register, and return their names.

    Raises:
        ExtensionLoadError: some extensions cannot be loaded; it names every fault, and nothing stays registered
    """
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(_Spec)
    owners: list[str] = []
    faults: list[str] = []
    for extension in extensions:
        try:
            for owner, plugin in _find(extension):
                try:
                    manager.register(plugin, owner)
                    _let_register(manager, owner, plugin, extension.settings, registry)
                    owners.append(owner)
                except (Exception, SystemExit) as error:  # noqa: BLE001 - it is somebody else's code
                    registry.unregister_owner(owner)
                    faults.append(f"extension {owner}: {_describe(error)}")
        except ExtensionLoadError as error:
            faults.append(str(error))
    if faults:
        for owner in owners:
            registry.unregister_owner(owner)
        raise ExtensionLoadError("\n".join(faults))
    return owners


def _let_register(
    manager: pluggy.PluginManager, owner: str, plugin: object, settings: Mapping[str, Any], registry: ExtensionRegistry
) -> None:
    others = [each for each in manager.get_plugins() if each is not plugin]
    if not any(each.plugin is plugin for each in manager.hook.replctl_register.get_hookimpls()):
        raise InvalidContribution("there is no @hookimpl function replctl_register(register, settings)")

    def register(what: Contribution) -> Any:
        return registry.register(owner, what)

    manager.subset_hook_caller("replctl_register", others)(register=register, settings=settings)


def _describe(error: BaseException) -> str:
    return str(error) if isinstance(error, InvalidContribution) else f"{type(error).__name__}: {error}"


def _find(extension: Extension) -> Iterator[tuple[str, object]]:
    if (extension.name is None) == (extension.path is None):
        raise ExtensionLoadError("extensions: each entry needs either a name or a path")
    if extension.name is not None:
        yield extension.name, _load_entry_point(extension.name)
        return
    path = Path(os.path.expanduser(extension.path or ""))
    _check_owner(path)
    for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
        _check_owner(file)
        yield file.stem.replace("_", "-"), _load_file(file)


def _load_entry_point(name: str) -> object:
    for point in importlib.metadata.entry_points(group=GROUP, name=name):
        try:
            return point.load()
        except (Exception, SystemExit) as error:
            raise ExtensionLoadError(f"extension {name}: {type(error).__name__}: {error}") from error
    there = sorted({point.name for point in importlib.metadata.entry_points(group=GROUP)})
    raise ExtensionLoadError(f"extension {name} is not installed; available: {', '.join(there) or 'none'}")


def _check_owner(path: Path) -> None:
    """Reject code that other users could have written."""
    try:
        facts = path.stat()
    except OSError as error:
        raise ExtensionLoadError(f"extension {path}: {error.strerror}") from None
    if facts.st_uid not in (0, os.getuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ExtensionLoadError(
            f"extension {path}: writable by other users; run chmod go-w, and chown to root or yourself"
        )


def _load_file(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"replctl_extension_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ExtensionLoadError(f"extension {file}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ExtensionLoadError(f"extension {file}: {type(error).__name__}: {error}") from error
    return module

"""Rereading of the settings while the broker runs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from replbroker.core.operations.settings_reload import LiveSettings, RereadResult
from replwire.agents import AgentRules
from replwire.config import RELOADABLE, Config, ConfigError, LoadedConfig, changed_settings
from replwire.network import HostLists


class ConfigReload:
    """The settings in force, and how to load them again.

    Args:
        current: The settings that the broker started with.
        read: Loads the settings as a start would find them now, from file, environment and flags.
        idle_exit: Whether the broker ends when it is idle.
    """

    def __init__(self, current: Config, read: Callable[[], LoadedConfig], *, idle_exit: bool) -> None:
        self._current = current
        self._read = read
        self._idle_exit = idle_exit

    def reload(self) -> RereadResult:
        """Load the settings again; return those in force from now on, and what has changed."""
        try:
            found = self._read().config
        except ConfigError as error:
            return RereadResult(error=str(error))
        reloaded = [key for key in changed_settings(self._current, found) if key in RELOADABLE]
        self._current = _merge_keys(self._current, found, reloaded)
        return RereadResult(
            live=live_settings(self._current, self._idle_exit),
            reloaded=reloaded,
            needs_restart=changed_settings(self._current, found),
        )


def live_settings(config: Config, idle_exit: bool) -> LiveSettings:
    """Return the settings that may change while the broker runs."""
    return LiveSettings(
        limits=config.limits,
        agents=AgentRules(config.agents),
        identities=tuple(config.identities),
        admins=frozenset(config.access.admins),
        warm_workers=config.broker.warm_workers,
        idle_exit_ms=config.broker.idle_exit_ms if idle_exit else 0,
        hosts=HostLists(*(getattr(config.sandbox, name) for name in HostLists._fields)),
    )


def _merge_keys(config: Config, changed: Config, keys: list[str]) -> Config:
    """Return `config` with these settings of `changed`."""
    merged, found = msgspec.to_builtins(config), msgspec.to_builtins(changed)
    for key in keys:
        section, dot, name = key.partition(".")
        if dot:
            merged[section][name] = found[section][name]
        else:
            merged[section] = found[section]
    return msgspec.convert(merged, Config)

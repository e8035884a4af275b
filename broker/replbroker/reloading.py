"""The config file read again by a broker that runs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from replbroker.core.reload import LiveSettings, Reread
from replwire.agents import Agents
from replwire.config import RELOADABLE, Config, ConfigError, Loaded, changes


class ConfigReload:
    """`read` gives the settings as a start would find them now, from file, environment and flags."""

    def __init__(self, running: Config, read: Callable[[], Loaded], *, idle_exit: bool) -> None:
        self._running = running
        self._read = read
        self._idle_exit = idle_exit

    def again(self) -> Reread:
        """Read them; what is in force from here on, and what is not."""
        try:
            found = self._read().config
        except ConfigError as error:
            return Reread(error=str(error))
        reloaded = [key for key in changes(self._running, found) if key in RELOADABLE]
        self._running = _with(self._running, found, reloaded)
        return Reread(
            live=live(self._running, self._idle_exit), reloaded=reloaded, needs_restart=changes(self._running, found)
        )


def live(config: Config, idle_exit: bool) -> LiveSettings:
    """The settings that the core looks at each time."""
    return LiveSettings(
        limits=config.limits,
        agents=Agents(config.agents),
        identities=tuple(config.identities),
        admins=frozenset(config.access.admins),
        warm_workers=config.broker.warm_workers,
        idle_exit_ms=config.broker.idle_exit_ms if idle_exit else 0,
    )


def _with(config: Config, other: Config, keys: list[str]) -> Config:
    """A config with some settings of another."""
    merged, found = msgspec.to_builtins(config), msgspec.to_builtins(other)
    for key in keys:
        section, dot, name = key.partition(".")
        if dot:
            merged[section][name] = found[section][name]
        else:
            merged[section] = found[section]
    return msgspec.convert(merged, Config)

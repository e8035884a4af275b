"""Settings of a broker from file, environment and flags, for `serve`, `config show` and `doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from replwire.paths import config_file, missing_config_message

if TYPE_CHECKING:
    from replwire.config import LoadedConfig
    from replwire.extensions import Extension


def read_settings(path: str | None, flags: dict[str, str]) -> LoadedConfig:
    """Return the settings in force. Raises a usage error for an invalid setting or a missing named file."""
    from replwire.config import ConfigError, load  # imported only if there is something to load

    origin, text = _read(path)
    try:
        return replace(load(text, origin, os.environ, flags), file=None if text is None else origin)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def salvage_settings(path: str | None, flags: dict[str, str]) -> tuple[LoadedConfig, list[str]]:
    """Return the valid settings, and the problems with the others."""
    from replwire.config import load_valid

    try:
        origin, text = _read(path)
    except click.UsageError as error:
        origin, text = "", None
        unread = [error.format_message()]
    else:
        unread = []
    loaded, problems = load_valid(text, origin, os.environ, flags)
    return replace(loaded, file=None if text is None else origin), [*unread, *problems]


def _read(path: str | None) -> tuple[str, str | None]:
    """Return the path of the config file and its text. Raises a usage error if it cannot be read."""
    origin = path or config_file(os.environ)
    try:
        with open(origin, encoding="utf-8") as file:
            text: str | None = file.read()
    except FileNotFoundError:
        if (named := _config_source(path)) is not None:
            raise click.UsageError(missing_config_message(named, origin)) from None
        text = None
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read {origin}: {error}") from None
    return origin, text


def _config_source(path: str | None) -> str | None:
    """Return what names the config file, or None for the default, which need not exist."""
    if path is not None:
        return "--config"
    return "REPLCTL_CONFIG" if os.environ.get("REPLCTL_CONFIG") else None


def parse_set(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `section.key=value`; raises a usage error for anything else."""
    flags = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or "." not in key:
            raise click.UsageError(f"--set needs SECTION.KEY=VALUE, not {pair!r}")
        flags[key.strip()] = value
    return flags


def configured_extensions() -> list[Extension]:
    """Return the extensions of the config file, in order; none if the file is invalid.

    `config show` and `doctor` report an invalid file. Raises a usage error if REPLCTL_CONFIG names a missing file.
    """
    if not os.path.exists(config_file(os.environ)):
        if os.environ.get("REPLCTL_CONFIG"):
            read_settings(None, {})  # raises: the named file is missing
        return []
    loaded, problems = salvage_settings(None, {})
    return [] if problems else loaded.config.extensions

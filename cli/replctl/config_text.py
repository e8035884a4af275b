"""Changes to the text of a config file that keep its comments, order and layout."""

from __future__ import annotations

from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Table

from replwire.config import ConfigError, list_settings, load, parse_value


def set_value(text: str, origin: str, dotted: str, value: str) -> str:
    """Return a config file's text with one setting changed.

    Args:
        text: The file's text; empty for a new file.
        origin: The file's name, used in messages.
        dotted: `section.key`.
        value: The value as TOML; anything that is not TOML is a string.

    Raises:
        ConfigError: The file would not be valid with it.
    """
    section, _, key = dotted.partition(".")
    document = _parse(text, origin)
    if section not in document:
        document[section] = tomlkit.table()
    _section(document, origin, section)[key] = parse_value(value)
    return _checked(document, origin)


def unset_value(text: str, origin: str, dotted: str) -> str:
    """Return a config file's text without one setting; unchanged if the file does not have it.

    Raises:
        ConfigError: The file would not be valid without it.
    """
    section, _, key = dotted.partition(".")
    document = _parse(text, origin)
    if section not in document or key not in (table := _section(document, origin, section)):
        return text
    del table[key]
    if not table.as_string().strip():  # no comment is left there either
        del document[section]
    return _checked(document, origin)


def is_setting(dotted: str) -> bool:
    """Return whether there is a scalar setting of this name."""
    return dotted in setting_names()


def setting_names() -> list[str]:
    """Return every scalar setting as `section.key`."""
    return [f"{section}.{key}" for section, key, _ in list_settings()]


def _parse(text: str, origin: str) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise ConfigError(f"{origin}: {error}", origin) from None


def _section(document: tomlkit.TOMLDocument, origin: str, section: str) -> Table | InlineTable:
    found: Any = document[section]
    if not isinstance(found, Table | InlineTable):
        raise ConfigError(f"{origin}: {section} is not a section", origin, section)
    return found


def _checked(document: tomlkit.TOMLDocument, origin: str) -> str:
    text = tomlkit.dumps(document).rstrip("\n") + "\n"
    load(text, origin)
    return text
